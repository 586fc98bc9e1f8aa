"""Which names the gateway answers to: a web page whose own name is made to point here must not reach it.

A browser lets a page talk to the host that it came from. Whoever owns a domain can let it point to 127.0.0.1
a moment later (DNS rebinding), and the page then talks to what listens there; but it cannot change the Host
header, which names the domain. Keys stop such a page too, since it has none.
"""

import ipaddress
from collections.abc import Iterable

from pillion.addresses import loopback
from pillion.gateway.protocol.errors import ApiError

ALL = "*"
# Nobody can get a public domain under these; and public names have a dot.
_LOCAL = (".localhost", ".local", ".internal")


class Hosts:
    """What the Host header may be. Names compare without case, port and final dot."""

    def __init__(self, listens: str, allowed: Iterable[str], *, keys: bool) -> None:
        """`listens` is --host, `allowed` are --allowed-hosts. Without the latter any name will do where keys
        are needed, or where others than this machine are let in: a proxy in front may pass on any name.
        """
        self._names = {_bare(name) for name in (*allowed, listens) if name}
        self._any = ALL in self._names or (not tuple(allowed) and (keys or not loopback(listens)))

    def check(self, header: str | None) -> None:
        """Raises ApiError (403). A request without the header comes from no browser."""
        if self._any or header is None:
            return
        name = _bare(header)
        if name in self._names or "." not in name or name.endswith(_LOCAL) or _is_address(name):
            return
        raise ApiError(
            403,
            "This server does not answer to the name in the Host header; start it with --allowed-hosts NAME, "
            "or with API keys.",
            code="host_not_allowed",
        )


def _bare(host: str) -> str:
    """`[::1]:8000` is `::1`, `Localhost.:80` is `localhost`."""
    name = host.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    if name.count(":") == 1:
        name = name.partition(":")[0]
    return name.removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
