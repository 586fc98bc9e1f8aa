"""The heartbeat: what admission and gateways know of this replica."""

import asyncio
import logging
from collections.abc import Callable

from msgspec.structs import replace

from pillion.bus import UNREACHABLE, Connection, Keys
from pillion.contracts.entries import Heartbeat, encode
from pillion.scheduler.messages import Snapshot

log = logging.getLogger(__name__)

SHORTEST = 0.05  # seconds between two heartbeats
LONGEST = 1.0  # even when nothing changes
RATE_GUESS = 500.0  # prompt tokens/s before any was measured
_MAXLEN = 1000


def heartbeat(stands: Heartbeat, snapshot: Snapshot, credit_seconds: float) -> Heartbeat:
    """`stands` (who it is, how it stands, what it has read), with what the core tells of its load."""
    facts = stands.facts
    if facts is not None and snapshot.max_model_len:
        facts = replace(facts, max_model_len=snapshot.max_model_len)
    return replace(
        stands,
        facts=facts,
        uncomputed=snapshot.uncomputed,
        credit=int((snapshot.intake or RATE_GUESS) * credit_seconds),
        prefill_rate=snapshot.prefill_rate,
        seats=snapshot.seats,
        step_seconds=snapshot.step_seconds,
        idle_rate=snapshot.idle_rate,
        running=snapshot.running,
        waiting=snapshot.waiting,
        free_blocks=snapshot.free_blocks,
        kv_usage=snapshot.referenced_blocks / snapshot.blocks if snapshot.blocks else 0.0,
        steps=snapshot.steps,
        stalled=snapshot.overdue,
        step_limit=snapshot.step_limit,
        step_target=snapshot.step_target,
        preemptions=snapshot.preemptions,
        prefix_queried=snapshot.queried_tokens,
        prefix_hit=snapshot.hit_tokens,
    )


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
