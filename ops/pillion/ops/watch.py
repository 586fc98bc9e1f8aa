"""Whether a process that is there also works: asked the way its clients ask, for any answer at all.

A process that was stopped, or whose event loop hangs, holds its sockets open and says nothing. What it would
say does not matter here: a refusal, or a connection that is closed at once, is an answer.
"""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

from redis.exceptions import RedisError

from pillion.bus import Connection, Keys

LOOK = 5.0  # seconds between two looks, or a quarter of the limit
SECONDS = 2.0  # for one answer
_HTTP = b"GET /health/live HTTP/1.1\r\nHost: pillion\r\nConnection: close\r\n\r\n"
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # preface, empty SETTINGS


class Silence:
    """How long each process has said nothing, counted in looks and not by the clock: that goes on while this
    process itself, or the whole machine, is stopped."""

    def __init__(self, limit: float) -> None:
        self.look = min(LOOK, limit / 4)  # seconds between two looks
        self._limit = limit
        self._looks: dict[int, int] = {}

    def heard(self, pid: int, works: bool) -> bool:
        """Whether the process has been silent for too long."""
        looks = self._looks[pid] = 0 if works else self._looks.get(pid, 0) + 1
        return looks * self.look >= self._limit

    def forget(self, pid: int) -> None:
        self._looks.pop(pid, None)


async def http(url: str) -> bool:
    """A gateway at this URL, with TLS or without."""
    parts = urlsplit(url)
    return await _says(f"{parts.hostname}:{parts.port}", _HTTP)


async def grpc(target: str) -> bool:
    """An executor at `unix:PATH` or `host:port`; its settings are HTTP/2's first word."""
    return await _says(target, _HTTP2)


async def redis(socket: Path) -> bool:
    """The embedded Valkey, also while it reads its log."""
    return await _says(f"unix:{socket}", b"PING\r\n")


async def leased(connection: Connection, keys: Keys, holder: str) -> bool:
    """A scheduler or admission: a lease that is not renewed ends. While Redis is away nobody can tell."""
    try:
        async with asyncio.timeout(SECONDS):
            return bool(await connection.call("EXISTS", keys.lease(holder)))
    except (RedisError, OSError, TimeoutError):
        return True


async def _says(target: str, words: bytes) -> bool:
    try:
        async with asyncio.timeout(SECONDS):
            if target.startswith("unix:"):
                reader, writer = await asyncio.open_unix_connection(target.removeprefix("unix:"))
            else:
                host, _, port = target.rpartition(":")
                reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            try:
                writer.write(words)
                await reader.read(1)
            finally:
                writer.close()
    except (ConnectionError, FileNotFoundError):
        return True  # nobody listens: it is not up yet, or has just ended
    except (OSError, TimeoutError):
        return False
    return True
