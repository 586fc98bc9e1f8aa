"""A lease with an epoch: one holder at a time, and every write of a former one is refused."""

import asyncio
import logging

from pillion.actors import Exit, Stop
from pillion.bus.connection import UNREACHABLE, Connection, retrying
from pillion.bus.keys import Keys
from pillion.bus.scripts import ACQUIRE, RELEASE, RENEW, LeaseLost

log = logging.getLogger(__name__)


class Lease:
    """`holder` is what is held: `replica:0`, `admission`. The epoch grows with every new holder.

    The lease's end only lets a successor in; it is the successor's epoch that shuts the former holder out.
    `key` is what fenced scripts take as their first key.
    """

    def __init__(self, connection: Connection, keys: Keys, holder: str, seconds: float) -> None:
        self.connection = connection
        self.key = keys.epoch(holder)
        self.seconds = seconds
        self.epoch = 0  # 0: not held
        self._lease = keys.lease(holder)

    async def acquire(self) -> int:
        """Waits until the lease is free (a dead holder's ends by itself) and answers the new epoch."""
        keys, args = [self._lease, self.key], [self._milliseconds]
        while not self.epoch:
            answer = await retrying(self._lease, lambda: ACQUIRE(self.connection, keys, args))
            if answer is None:
                await asyncio.sleep(min(0.1, self.seconds / 10))
            else:
                self.epoch = int(answer)
        return self.epoch

    async def keep(self) -> None:
        """Renews without end. Raises Stop when another process holds the lease: this one must exit."""
        while True:
            await asyncio.sleep(self.seconds / 4)
            try:
                lost = await RENEW(self.connection, [self.key, self._lease], [self.epoch, self._milliseconds])
            except LeaseLost as error:
                raise Stop(Exit.LEASE_LOST, str(error)) from None
            except UNREACHABLE:
                continue  # while Redis is away nobody else can take it either
            if lost:
                log.error("%s was lost and is set again; Redis lost data", self.key)

    async def release(self) -> None:
        """Lets a successor start at once."""
        if self.epoch:
            await RELEASE(self.connection, [self._lease], [self.epoch])
            self.epoch = 0

    @property
    def _milliseconds(self) -> int:
        return int(self.seconds * 1000)
