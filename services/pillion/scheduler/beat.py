"""The heartbeat: what admission and gateways know of this replica."""

import asyncio
import logging
from collections.abc import Callable

from pillion.bus import UNREACHABLE, Connection, Keys
from pillion.contracts.entries import Heartbeat, encode

log = logging.getLogger(__name__)

SHORTEST = 0.05  # seconds between two heartbeats
LONGEST = 1.0  # even when nothing changes
_MAXLEN = 1000


class Beat:
    """Sends `compose()` when `changed()` was called, and once a second at least."""

    def __init__(self, connection: Connection, keys: Keys, compose: Callable[[], Heartbeat]) -> None:
        self._connection = connection
        self._keys = keys
        self._compose = compose
        self._changed = asyncio.Event()

    def changed(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        away = False
        while True:
            try:
                await self.send()
            except UNREACHABLE as error:
                if not away:
                    log.warning("heartbeat: Redis cannot be reached: %s", error)
                away = True
            else:
                away = False
            await asyncio.sleep(SHORTEST)
            try:
                async with asyncio.timeout(LONGEST - SHORTEST):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def send(self) -> None:
        """One heartbeat, now. Raises RedisError."""
        self._changed.clear()
        beat = self._compose()
        payload = encode(beat)
        await self._connection.pipeline(
            ("XADD", self._keys.beats, "MAXLEN", "~", _MAXLEN, "*", "e", payload),
            ("HSET", self._keys.replicas, beat.replica, payload),
        )
