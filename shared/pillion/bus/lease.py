"""A lease with an epoch: one holder at a time, and every write of a former one is refused."""

import asyncio

from pillion.actors import Exit, Stop
from pillion.bus.connection import UNREACHABLE, Connection
from pillion.bus.keys import Keys
from pillion.bus.scripts import ACQUIRE, RELEASE, RENEW, LeaseLost


class Lease:
    """`holder` is what is held: `replica:0`, `admission`. The epoch grows with every new holder."""

    def __init__(self, connection: Connection, keys: Keys, holder: str, seconds: float) -> None:
        self.connection = connection
        self.key = keys.lease(holder)
        self.seconds = seconds
        self.epoch = 0  # 0: not held
        self._epoch_key = keys.epoch(holder)

    async def acquire(self) -> int:
        """Waits until the lease is free (a dead holder's ends by itself) and answers the new epoch."""
        while not self.epoch:
            try:
                answer = await ACQUIRE(
                    self.connection, [self.key, self._epoch_key], [int(self.seconds * 1000)]
                )
            except UNREACHABLE:
                answer = None
            if answer is None:
                await asyncio.sleep(min(0.1, self.seconds / 10))
            else:
                self.epoch = int(answer)
        return self.epoch

    async def keep(self) -> None:
        """Renews without end. Raises Stop when the lease is lost: the process must exit."""
        while True:
            await asyncio.sleep(self.seconds / 4)
            try:
                await RENEW(self.connection, [self.key], [self.epoch, int(self.seconds * 1000)])
            except LeaseLost as error:
                raise Stop(Exit.LEASE_LOST, str(error)) from None
            except UNREACHABLE:
                continue  # while Redis is away nobody else can take it either

    async def release(self) -> None:
        """Lets a successor start at once."""
        if self.epoch:
            await RELEASE(self.connection, [self.key], [self.epoch])
            self.epoch = 0
