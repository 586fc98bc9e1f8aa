"""The processes of a stack on this machine, as the system sees them."""

import re
from contextlib import suppress

import psutil

ROLES = ("valkey", "executor", "scheduler", "admission", "gateway")

_ROLE = re.compile(rf"(?:pillion-|-m pillion\.ops )({'|'.join(ROLES)})\b|(valkey)-server")


def roles(up: int) -> dict[str, list[int]]:
    """The pids of each role's processes that run under a `pillion up`. Raises psutil.NoSuchProcess."""
    found: dict[str, list[int]] = {}
    for child in psutil.Process(up).children():
        with suppress(psutil.NoSuchProcess):
            role = _ROLE.search(" ".join(child.cmdline()))
            if role and child.status() != psutil.STATUS_ZOMBIE:
                found.setdefault(role[1] or role[2], []).append(child.pid)
    return found
