"""Parks what nobody waits for: requests of gateways that are gone."""

import asyncio
import logging
from collections.abc import Callable

from pillion import clock
from pillion.bus import UNREACHABLE, Connection, Keys
from pillion.bus.ledger import Ledger
from pillion.contracts.entries import Request

log = logging.getLogger(__name__)

LOOK = 1.0  # seconds between looks; commands a look do not depend on the number of requests
PATIENCE = 5.0  # seconds without the gateway's word; longer than its pause between two, should Redis lose one


class Gateways:
    """A gateway says that it lives under the lease `gateway:{id}`. `gone` is told each of its requests."""

    def __init__(
        self, connection: Connection, keys: Keys, ledger: Ledger, gone: Callable[[Request], None]
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._ledger = ledger
        self._gone = gone
        self._missing: dict[str, float] = {}  # since when

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            try:
                await self.look(clock.monotonic())
            except UNREACHABLE:
                self._missing.clear()  # nobody can say anything now

    async def look(self, now: float) -> None:
        """Raises RedisError."""
        requests = self._ledger.by_gateway()
        names = list(requests)
        if not names:
            self._missing.clear()
            return
        leases = [self._keys.lease(f"gateway:{name}") for name in names]
        words = await self._connection.call("MGET", *leases)
        self._missing = {
            name: self._missing.get(name, now)
            for name, word in zip(names, words, strict=True)
            if word is None
        }
        for name, since in self._missing.items():
            if now - since >= PATIENCE:
                log.warning("gateway %s is gone, %d of its requests are parked", name, len(requests[name]))
                for request in requests[name]:
                    self._gone(request)
