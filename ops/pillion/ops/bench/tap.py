"""One streamed completion, read as cheaply as can be: bytes and when they came, until it is closed.

A client of a thousand streams on the server's own cores would else be what is measured.
"""

import asyncio
import json
import time
from typing import Any, cast

from pillion.ops.bench.client import Timeline, taken_apart

_HEAD = (
    "POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    "Content-Length: {length}\r\nConnection: close\r\n\r\n"
)
_LAST = 500  # bytes


class Tap(asyncio.Protocol):
    """`began` is set with the first event, and like `ended` when the answer is whole or the server gone."""

    def __init__(self, address: tuple[str, int], body: dict[str, Any]) -> None:
        host, port = self._address = address
        raw = json.dumps(body).encode()
        self._request = _HEAD.format(host=host, port=port, length=len(raw)).encode() + raw
        self._transport: asyncio.Transport | None = None
        self._sent = 0.0
        self._reads: list[tuple[float, bytes]] = []
        self.began = asyncio.Event()
        self.ended = asyncio.Event()

    async def open(self) -> None:
        """Connects and sends. Raises OSError."""
        self._sent = time.perf_counter()
        await asyncio.get_running_loop().create_connection(lambda: self, *self._address)

    async def close(self) -> None:
        """The server sees that nobody reads any more."""
        if self._transport is not None:
            self._transport.abort()
            await self.ended.wait()

    def line(self) -> Timeline:
        """What came. Chunks hold whole events, so that what is between them are lines of their own."""
        return taken_apart(self._sent, self._reads)

    def last(self) -> str:
        """The end of what came, for an error's message."""
        return b"".join(data for _, data in self._reads[-4:])[-_LAST:].decode(errors="replace")

    # --- asyncio.Protocol --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._reads.append((time.perf_counter(), data))
        if not self.began.is_set() and b"data:" in data:
            self.began.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.began.set()  # nobody need wait for what will not come
        self.ended.set()
