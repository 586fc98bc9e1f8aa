"""Tells timelines: with a request's record when it ends, and under a key of their own when asked for."""

import asyncio

from pillion import clock
from pillion.bus import Connection, Keys, retrying
from pillion.bus.ledger import Ledger
from pillion.contracts.entries import encode
from pillion.scheduler.history import History

KEPT = 10  # seconds
_WAITING = 64  # answers while Redis is away; more are not given


class Explaining:
    """Asked by the loop that owns the history; an actor brings the answers to Redis."""

    def __init__(
        self, connection: Connection, keys: Keys, replica: str, history: History, ledger: Ledger
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._replica = replica
        self._history = history
        self._ledger = ledger
        self._answers: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue(_WAITING)

    def closed(self, requests: tuple[str, ...]) -> dict[str, bytes]:
        """The timelines of requests that end or are parked now."""
        result = {}
        for request in requests:
            timeline = self._history.close(request, self._replica, self._forwarded(request), _wall())
            if timeline is not None:
                result[request] = encode(timeline)
        return result

    def asked(self, request: str) -> None:
        """Tells how it stands now; nothing where the request is not here any more."""
        timeline = self._history.timeline(request, self._replica, self._forwarded(request), _wall())
        if timeline is not None and not self._answers.full():
            self._answers.put_nowait((self._keys.explained(request), encode(timeline)))

    async def run(self) -> None:
        """A loop without end."""
        while True:
            key, answer = await self._answers.get()
            await retrying("explain", lambda: self._connection.call("SET", key, answer, "EX", KEPT))  # noqa: B023

    def _forwarded(self, request: str) -> float:
        """When its entry was added to the run stream, by Redis' clock."""
        opened = self._ledger.get(request)
        return int(opened.entry.partition("-")[0]) / 1000 if opened else 0.0


def _wall() -> float:
    return clock.wall() - clock.monotonic()
