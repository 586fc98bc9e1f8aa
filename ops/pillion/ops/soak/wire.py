"""HTTP/1.1 by hand: a client that may leave, stall or lie at any byte, which libraries do not let it do."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

HEAD_LIMIT = 1 << 16  # bytes


class Closed(ConnectionError):
    """The server closed the connection before the answer was whole."""


@dataclass(frozen=True, slots=True)
class Head:
    status: int
    headers: Mapping[str, str]  # names in lower case


def request(method: str, path: str, body: bytes | None = None, **headers: str) -> bytes:
    """The bytes of a request; `content_type` and the like name headers."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join((*lines, "", "")).encode() + (body or b"")


class Wire:
    """One connection. Not for two tasks at once; every wait ends after `patience` seconds (TimeoutError)."""

    def __init__(self, url: str, patience: float) -> None:
        parts = urlsplit(url)
        self._address = parts.hostname or "127.0.0.1", parts.port or 80
        self._patience = patience
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def opened(self) -> bool:
        return self._writer is not None and not self._writer.is_closing()

    async def send(self, data: bytes) -> None:
        """Connects first where there is no connection. Raises OSError."""
        async with asyncio.timeout(self._patience):
            if not self.opened:
                self._reader, self._writer = await asyncio.open_connection(*self._address, limit=HEAD_LIMIT)
            assert self._writer is not None
            self._writer.write(data)
            await self._writer.drain()

    async def head(self) -> Head:
        """Raises Closed, and ValueError for what is no HTTP."""
        lines = (await self._until(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        version, status, *_ = lines[0].split(" ")
        if not version.startswith("HTTP/"):
            raise ValueError(f"no status line: {lines[0]!r}")
        pairs = (line.split(":", 1) for line in lines[1:] if line)
        return Head(int(status), {name.strip().lower(): value.strip() for name, value in pairs})

    async def body(self, head: Head) -> AsyncIterator[bytes]:
        """The body in the pieces in which it comes. Raises Closed."""
        if head.headers.get("transfer-encoding") == "chunked":
            while size := int((await self._until(b"\r\n")).split(b";")[0], 16):
                yield await self._exactly(size)
                await self._exactly(2)
            await self._until(b"\r\n")
        elif left := int(head.headers.get("content-length", 0)):
            yield await self._exactly(left)
        if head.headers.get("connection", "").lower() == "close":
            self.close()

    async def answer(self) -> tuple[Head, bytes]:
        """Head and whole body. Raises Closed, ValueError."""
        head = await self.head()
        return head, b"".join([piece async for piece in self.body(head)])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def abort(self) -> None:
        """As a client that is gone: the connection is reset."""
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None

    async def _until(self, mark: bytes) -> bytes:
        assert self._reader is not None
        try:
            async with asyncio.timeout(self._patience):
                return (await self._reader.readuntil(mark)).removesuffix(mark)
        except asyncio.IncompleteReadError as error:
            raise Closed(f"closed after {len(error.partial)} bytes") from None
        except asyncio.LimitOverrunError:
            raise ValueError("a head or a chunk's size without end") from None

    async def _exactly(self, count: int) -> bytes:
        assert self._reader is not None
        try:
            async with asyncio.timeout(self._patience):
                return await self._reader.readexactly(count)
        except asyncio.IncompleteReadError as error:
            raise Closed(f"closed after {len(error.partial)} of {count} bytes") from None
