"""Where the executor listens: `unix:PATH` or `host:port`."""

import errno
import os
import socket
from pathlib import Path

import grpc.aio

from pillion.config import Config

_LONGEST_PATH = 107  # bytes; sun_path less its terminating zero


class ListenError(RuntimeError):
    """The address cannot be listened on. The message says why and what to do."""


def address(config: Config) -> str:
    """The configured address, else a socket in the stack's state folder."""
    return config.executor.executor or f"unix:{config.state_path}/executor-{config.scheduler.replica}.sock"


def bind(server: grpc.aio.Server, target: str) -> str:
    """Adds the port to `server` and gives the address to dial, with the real port where 0 was asked for.

    A socket file that nobody listens on is replaced. Raises ListenError.
    """
    path = Path(target.removeprefix("unix:")) if target.startswith("unix:") else None
    if path is not None:
        _clear(path)
    try:
        port = server.add_insecure_port(target)
    except RuntimeError as error:
        raise ListenError(f"cannot listen on {target}: {error}; choose another with --executor") from None
    if path is not None:
        path.chmod(0o600)
        return target
    return f"{target.rpartition(':')[0]}:{port}"


def _clear(path: Path) -> None:
    """Makes the socket's folder, private to the user, and removes a stale socket."""
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise ListenError(
            f"{path} is longer than the {_LONGEST_PATH} bytes a socket's path may have; set --executor or "
            "--state-dir to a shorter one"
        )
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.is_socket():
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(1.0)
                refused = probe.connect_ex(str(path)) in (errno.ECONNREFUSED, errno.ENOENT)
            if not refused:
                raise ListenError(
                    f"another executor listens on {path}; end it, or set --replica or --executor"
                )
            path.unlink(missing_ok=True)
        elif path.exists():
            raise ListenError(f"{path} exists and is no socket; remove it, or set --executor")
    except OSError as error:
        raise ListenError(f"cannot listen on {path}: {error.strerror}") from None
