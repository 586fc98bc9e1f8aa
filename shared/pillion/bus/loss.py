"""Whether Redis still has the stack's data: found out in one place, and told to who must restore it.

Data is lost when Redis is emptied (FLUSHALL), when it starts without its log, and, a moment's worth, when a
power cut or a failover takes what was not yet written. A marker among the keys tells the first two, the
server's run id the third. Which data there is has a name, the generation: marker and run id together.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from pillion.bus.connection import UNREACHABLE, Connection
from pillion.bus.keys import Keys

log = logging.getLogger(__name__)

LOOK = 0.5  # seconds between two looks; one round trip each


class Watch:
    """`changed(generation)` is awaited for the first generation that is seen, and for each later one."""

    def __init__(self, connection: Connection, keys: Keys, changed: Callable[[str], Awaitable[None]]) -> None:
        self.generation = ""  # the last that was told
        self._connection = connection
        self._key = keys.marker
        self._changed = changed

    async def look(self) -> str:
        """The generation now. Raises RedisError."""
        return await generation(self._connection, self._key)

    async def run(self) -> None:
        """An actor. Ends only by cancellation."""
        away = False
        while True:
            try:
                found = await self.look()
            except UNREACHABLE as error:
                if not away:
                    log.warning("Redis cannot be used: %s", error)
                away = True
            else:
                if away:
                    log.info("Redis is back")
                away = False
                if found != self.generation:
                    if self.generation:
                        _say(self.generation, found)
                    await self._changed(found)
                    self.generation = found
            await asyncio.sleep(LOOK)


def _say(before: str, now: str) -> None:
    if before.partition(".")[0] != now.partition(".")[0]:
        log.error("Redis lost its data: what is held here is put back")
    else:
        log.warning("Redis is another process now: what it may have lost is put back")


async def generation(connection: Connection, marker: str) -> str:
    """Sets the marker where there is none, by its time; so its age is known too. Raises RedisError."""
    made, info = await connection.pipeline(("EVAL", _MARK, 1, marker), ("INFO", "server"))
    text = info.decode() if isinstance(info, bytes) else str(info)
    run = next((line[7:] for line in text.splitlines() if line.startswith("run_id:")), "")
    return f"{made.decode()}.{run[:12]}"


def age(name: str, now: float) -> float:
    """Seconds since the marker of this generation was made; `now` in seconds since the epoch."""
    return now - int(name.partition("-")[0]) / 1000


_MARK = """
local found = redis.call('GET', KEYS[1])
if found then return found end
local now = redis.call('TIME')
found = string.format('%.0f-%s', tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000), now[2])
redis.call('SET', KEYS[1], found)
return found
"""
