"""A lease with an epoch: one holder at a time, and every write of a former one is refused."""

import asyncio

from pillion.actors import Exit, Stop
from pillion.bus.connection import UNREACHABLE, Connection, retrying
from pillion.bus.keys import Keys
from pillion.bus.scripts import ACQUIRE, RELEASE, RENEW, DataLost, LeaseLost


class Lease:
    """`holder` is what is held: `replica:0`, `admission`. The epoch grows with every new holder.

    The lease's end only lets a successor in; it is the successor's epoch that shuts the former holder out.
    `key` is what fenced scripts take as their first key; it holds the last epoch that was given out.
    """

    def __init__(self, connection: Connection, keys: Keys, holder: str, seconds: float) -> None:
        self.connection = connection
        self.key = keys.epoch(holder)
        self.seconds = seconds
        self.epoch = 0  # 0: not held
        self.lease = keys.lease(holder)

    async def acquire(self) -> int:
        """Waits until the lease is free (a dead holder's ends by itself) and answers the new epoch.

        A lease that is gone because Redis lost its data is not taken before its holder had the time to set
        it again: what it holds in memory is all there is.
        """
        seen, patience = False, self.seconds
        while not self.epoch:
            must = int(seen and patience > 0)
            answer = await retrying(self.key, lambda: self._try(must))  # noqa: B023
            if answer:
                self.epoch = answer
                break
            pause = min(0.1, self.seconds / 10)
            seen = seen or answer is None
            patience = self.seconds if answer is None else patience - pause
            await asyncio.sleep(pause)
        return self.epoch

    async def try_acquire(self) -> bool:
        """Takes the lease if it is free now. Raises RedisError."""
        self.epoch = await self._try(0) or 0
        return bool(self.epoch)

    async def _try(self, must: int) -> int | None:
        answer = await ACQUIRE(self.connection, [self.lease, self.key], [self.milliseconds, must])
        return None if answer is None else int(answer)

    async def keep(self) -> None:
        """Renews without end. Raises Stop when another process holds the lease: this one must exit."""
        while True:
            await asyncio.sleep(self.seconds / 4)
            try:
                await RENEW(self.connection, [self.key, self.lease], [self.epoch, self.milliseconds])
            except LeaseLost as error:
                raise Stop(Exit.LEASE_LOST, str(error)) from None
            except DataLost:
                continue  # set again with all that its holder restores, and not before
            except UNREACHABLE:
                continue  # while Redis is away nobody else can take it either

    async def release(self) -> None:
        """Lets a successor start at once."""
        if self.epoch:
            await RELEASE(self.connection, [self.lease], [self.epoch])
            self.epoch = 0

    @property
    def milliseconds(self) -> int:
        return int(self.seconds * 1000)
