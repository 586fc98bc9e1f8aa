"""Waiting until what was written is on disk, many writers with one wait."""

import asyncio

from redis.exceptions import ResponseError

from pillion.actors import Exit, Stop
from pillion.bus.connection import Connection, Unwritable


class Durable:
    """WAITAOF for one connection. Who comes while one wait is under way shares the next one."""

    def __init__(self, connection: Connection, seconds: float = 5.0) -> None:
        """`seconds`: the longest wait."""
        self._connection = connection
        self._seconds = seconds
        self._next: asyncio.Task[None] | None = None
        self._running = asyncio.Lock()

    async def synced(self) -> None:
        """Returns when all that the connection has written before is on disk. Raises RedisError."""
        if self._next is None:
            self._next = asyncio.create_task(self._round())
        await asyncio.shield(self._next)

    async def check(self) -> None:
        """Raises Stop where the server cannot do it at all, RedisError where it cannot be asked."""
        try:
            await self.synced()
        except ResponseError as error:
            raise Stop(
                Exit.USAGE,
                f"--durability disk needs Redis 7.2 or later, or Valkey, with `appendonly yes`: {error}",
            ) from None

    async def _round(self) -> None:
        async with self._running:
            self._next = None  # who comes from now on may have written after this round began
            seconds = self._seconds
            answer = await self._connection.call("WAITAOF", 1, 0, int(seconds * 1000), deadline=seconds + 5)
            if answer[0] < 1:
                raise Unwritable(f"Redis did not bring its log to disk within {seconds:g} s")
