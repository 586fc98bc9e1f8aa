"""Where the executor listens, `unix:PATH` or `host:port`, and whom it lets in."""

import errno
import logging
import os
import socket
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from pillion.addresses import loopback
from pillion.config import Config
from pillion.contracts.access import Access

log = logging.getLogger(__name__)

_LONGEST_PATH = 107  # bytes; sun_path less its terminating zero


class ListenError(RuntimeError):
    """The address cannot be listened on. The message says why and what to do."""


def address(config: Config) -> str:
    """The configured address, else a socket in the stack's state folder."""
    return config.executor.executor or f"unix:{config.state_path}/executor-{config.scheduler.replica}.sock"


class Door(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Turns strangers away before the servicer hears of them."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        if self._access.admits(details.invocation_metadata or ()):
            return await continuation(details)
        log.warning("refused a scheduler without the secret of this executor")
        return grpc.stream_stream_rpc_method_handler(_refuse)


async def _refuse(_: object, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "this executor has another --executor-secret")


def bind(server: grpc.aio.Server, target: str, access: Access) -> str:
    """Adds the port to `server` and gives the address to dial, with the real port where 0 was asked for.

    A socket file that nobody listens on is replaced. Raises ListenError, also where others than this machine
    could come in unasked.
    """
    path = Path(target.removeprefix("unix:")) if target.startswith("unix:") else None
    if path is not None:
        _clear(path)
    elif not access.guarded and not loopback(target.rpartition(":")[0]):
        raise ListenError(
            f"whoever reaches {target} could use this executor: set --executor-secret, the same at the "
            "scheduler, or certificates with --executor-certfile, --executor-keyfile and --executor-cafile"
        )
    credentials = access.server() if path is None else None
    # Nobody else connects in the moment before the mode is set. The mask is the whole process's, so that
    # nothing else may make files meanwhile.
    mask = os.umask(0o177) if path is not None else None
    try:
        if credentials is not None:
            port = server.add_secure_port(target, credentials)
        else:
            port = server.add_insecure_port(target)
    except RuntimeError as error:
        raise ListenError(f"cannot listen on {target}: {error}; choose another with --executor") from None
    finally:
        if mask is not None:
            os.umask(mask)
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
