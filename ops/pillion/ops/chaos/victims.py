"""Strikes a process of the stack, or its data, and sees that it happened."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from pillion.ops.chaos.data import Data
from pillion.ops.chaos.report import Struck
from pillion.ops.chaos.schedule import Blow
from pillion.ops.rig import Rig, RigError

DEATH_SECONDS = 90.0  # that a process may take to be gone; a drain takes its grace period
_LOOK = 0.01


@dataclass(frozen=True, slots=True)
class Process:
    replica: str  # "" where its role has no process for each
    pid: int


def processes(rig: Rig, role: str) -> list[Process]:
    """Those of the role, by replica. Raises RigError."""
    found = [
        Process(replica, pid)
        for pid in rig.processes().get(role, ())
        if (replica := _replica(pid)) is not None
    ]
    return sorted(found, key=lambda process: (process.replica, process.pid))


def _replica(pid: int) -> str | None:
    """None for who is gone by now."""
    try:
        command = psutil.Process(pid).cmdline()
    except psutil.NoSuchProcess:
        return None
    return command[command.index("--replica") + 1] if "--replica" in command else ""


async def strike(rig: Rig, data: Data, blow: Blow) -> Struck:
    """Returns when the process is gone, or is stopped (`wake` it), or the data are gone. Raises RigError."""
    process = await _find(rig, data, blow)
    pid = process.pid
    struck = Struck(blow, pid, at=time.monotonic(), replica=process.replica)
    match blow.kind:
        case "flush":
            struck.died = await data.empty()
        case "stop":
            os.kill(pid, signal.SIGSTOP)
            struck.died = await _until(lambda: _status(pid) in (psutil.STATUS_STOPPED, None), 5.0)
        case "kill" | "term":
            os.kill(pid, signal.SIGKILL if blow.kind == "kill" else signal.SIGTERM)
            struck.died = await _until(lambda: _status(pid) in (psutil.STATUS_ZOMBIE, None), DEATH_SECONDS)
            struck.gone = time.monotonic()
    return struck


async def wake(struck: Struck) -> None:
    """Lets a process that was stopped go on when its time has come, or at once when this is cancelled."""
    try:
        await asyncio.sleep(max(struck.at + struck.blow.seconds - time.monotonic(), 0.0))
    finally:
        if _status(struck.pid) is not None:
            os.kill(struck.pid, signal.SIGCONT)


async def _find(rig: Rig, data: Data, blow: Blow) -> Process:
    end = time.monotonic() + 30.0
    while not (found := processes(rig, blow.role)) or (blow.kind == "flush" and not await data.there()):
        if time.monotonic() > end:
            raise RigError(f"no {blow.role} runs:\n{rig.tail()}")
        await asyncio.sleep(_LOOK)
    return found[int(blow.which * len(found))]


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
