"""Where a report is from: the command, without its secrets, the time and the version."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pillion.config import leaves
from pillion.version import VERSION


def origin(**more: Any) -> dict[str, Any]:
    """The provenance of what this process found out, and more of it."""
    return {
        "command": command(sys.argv[1:]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": f"pillion {VERSION}",
        **more,
    }


def command(arguments: Sequence[str]) -> str:
    """As it was given, but for the values of settings that are secret."""
    secret = {leaf.flag for leaf in leaves() if leaf.secret}
    shown, hide = ["pillion"], False
    for argument in arguments:
        flag, equals, _ = argument.partition("=")
        shown.append("***" if hide else f"{flag}=***" if equals and flag in secret else argument)
        hide = argument in secret
    return " ".join(shown)
