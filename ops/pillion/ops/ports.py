"""Whether the gateway's port can be had, before anything heavy starts."""

import errno
import socket

from pillion.ops.stack import StackError


def claim(host: str, port: int) -> int:
    """The port that the gateway will listen on: `port`, or for 0 a free one. Raises StackError.

    The port is let go again, so another program may still come first; the gateway then says so itself.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise StackError(
            f"--host {host}: {(error.strerror or str(error)).lower()}; give an address of this machine"
        ) from None
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen(1)
        except OSError as error:
            raise StackError(_remedy(error, host, port)) from None
        return int(probe.getsockname()[1])


def _remedy(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is in use; end what uses it (`ss -ltnp sport = :{port}` shows it), "
            "or take another with --port"
        )
    if error.errno == errno.EACCES:
        return f"port {port} needs more rights than this user has; take one above 1023 with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is no address of this machine; give one with --host, 0.0.0.0 for all"
    return f"cannot listen on {host}:{port}: {error.strerror}"
