"""The stack's Redis, seen and struck from outside."""

import asyncio
import time
from collections.abc import Iterable

from pillion.bus import UNREACHABLE, Connection, Keys
from pillion.bus.loss import generation
from pillion.config import Stack
from pillion.contracts.entries import Facts, Heartbeat, decode

_PATIENCE = 1.0  # seconds; it may be frozen


class Data:
    """Owns a connection; close it."""

    def __init__(self, stack: Stack) -> None:
        self._connection = Connection(stack.redis or "", "chaos")
        self._keys = Keys(stack.stack)

    async def facts(self) -> Facts:
        """What the model can take, from a replica's heartbeat. Raises RedisError."""
        return next(beat.facts for beat in await self._beats() if beat.facts is not None)

    async def holders(self, requests: Iterable[str]) -> dict[str, str]:
        """Of each request that a replica holds: which. None of them where Redis cannot be asked."""
        named = [*requests]
        if not named:
            return {}
        try:
            found = await self._connection.call("MGET", *map(self._keys.holder, named), deadline=_PATIENCE)
        except UNREACHABLE:
            return {}
        return {name: who.decode() for name, who in zip(named, found, strict=True) if who is not None}

    async def there(self) -> bool:
        """Whether it answers."""
        try:
            await self._connection.call("PING", deadline=_PATIENCE)
        except UNREACHABLE:
            return False
        return True

    async def empty(self) -> bool:
        """FLUSHALL. Whether there was something, of which nothing is left. Raises RedisError."""
        probe = f"{self._keys.marker}:chaos"
        await self._connection.call("SET", probe, 1)
        await self._connection.call("FLUSHALL")
        return not await self._connection.call("EXISTS", probe)

    async def whole(self, requests: Iterable[str], replicas: int) -> bool:
        """Whether all that lives has put back what it holds: the heads of these requests are there, and as
        many replicas have told of the data that there are now."""
        try:
            now = await generation(self._connection, self._keys.marker)
            told = [beat.generation == now for beat in await self._beats()]
            heads = [self._keys.stream(request) for request in requests]
            found = await self._connection.call("EXISTS", *heads) if heads else 0
        except UNREACHABLE:
            return False
        return len(told) >= replicas and all(told) and found == len(heads)

    async def left(self, seconds: float = 10.0) -> list[str]:
        """What still stands of requests, all of which have ended, once there was time for it to go: entries,
        and what is kept of each as long as it runs. Raises RedisError."""
        end = time.monotonic() + seconds
        while (found := await self._left()) and time.monotonic() < end:
            await asyncio.sleep(0.2)
        return found

    async def _left(self) -> list[str]:
        call, keys = self._connection.call, self._keys
        streams = [keys.submit.encode(), *await self._named(keys.run("*"))]
        counts = {key.decode(): await call("XLEN", key) for key in streams}
        counts[keys.reserved] = await call("HLEN", keys.reserved)
        counts[keys.holder("*")] = len(await self._named(keys.holder("*")))
        return [f"{count} left in {key}" for key, count in counts.items() if count]

    async def _named(self, pattern: str) -> list[bytes]:
        found, cursor = set[bytes](), b"0"
        while True:
            cursor, names = await self._connection.call("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
            found.update(names)
            if cursor == b"0":
                return sorted(found)

    async def _beats(self) -> list[Heartbeat]:
        return [decode(beat, Heartbeat) for beat in await self._connection.call("HVALS", self._keys.replicas)]

    async def close(self) -> None:
        await self._connection.close()
