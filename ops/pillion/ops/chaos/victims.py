"""Strikes a process of the stack and sees that it happened."""

import asyncio
import os
import signal
import time
from collections.abc import Callable

import psutil

from pillion.ops.chaos.report import Struck
from pillion.ops.chaos.schedule import Blow
from pillion.ops.chaos.stack import Broken, Stack

DEATH_SECONDS = 90.0  # that a process may take to be gone; a drain takes its grace period
_LOOK = 0.01


async def strike(stack: Stack, blow: Blow, dice: float) -> Struck:
    """`dice` in [0, 1) chooses where a role has several processes. Returns when the process is gone, or was
    stopped and runs again. Raises Broken."""
    pid = await _find(stack, blow.role, dice)
    struck = Struck(blow, pid, at=time.monotonic())
    if blow.kind == "stop":
        os.kill(pid, signal.SIGSTOP)
        struck.died = await _until(lambda: _status(pid) in (psutil.STATUS_STOPPED, None), 5.0)
        await asyncio.sleep(blow.seconds)
        if _status(pid) is not None:
            os.kill(pid, signal.SIGCONT)
        return struck
    os.kill(pid, signal.SIGKILL if blow.kind == "kill" else signal.SIGTERM)
    struck.died = await _until(lambda: _status(pid) in (psutil.STATUS_ZOMBIE, None), DEATH_SECONDS)
    return struck


async def _find(stack: Stack, role: str, dice: float) -> int:
    end = time.monotonic() + 30.0
    while not (pids := stack.pids().get(role)):
        if time.monotonic() > end:
            raise Broken(f"no {role} runs:\n{stack.tail()}")
        await asyncio.sleep(_LOOK)
    return sorted(pids)[int(dice * len(pids))]


def _status(pid: int) -> str | None:
    try:
        return str(psutil.Process(pid).status())
    except psutil.NoSuchProcess:
        return None


async def _until(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(_LOOK)
    return True
