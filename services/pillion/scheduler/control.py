"""What administrators want of this replica. Nothing of it outlives the process."""

import logging
from collections.abc import Callable

from pillion.bus import Connection, Keys, Lease, Reader, Tail, retrying
from pillion.contracts.entries import Control
from pillion.scheduler.messages import Ordered

log = logging.getLogger(__name__)

DRAINING = "an administrator drains it"


class Controls:
    """Reads the control stream. A word for another holder of the lease is passed over."""

    def __init__(
        self,
        connection: Connection,
        keys: Keys,
        replica: str,
        lease: Lease,
        put: Callable[[Ordered], None],
        read: Reader,
    ) -> None:
        self._read = read
        self.draining = False
        self.followed = "0-0"  # the last entry that was
        self._tail = Tail(connection, keys.control(replica))
        self._lease = lease
        self._put = put

    async def start(self) -> None:
        """What comes from now on is read; nobody can know the lease's epoch before."""
        await retrying("controls", self._tail.start)

    async def run(self) -> None:
        """A loop without end."""
        async for entries in self._tail.follow():
            for entry in entries:
                word = self._read(entry.payload, Control, entry.id)
                if word is None:
                    continue
                if word.epoch == self._lease.epoch:
                    self._put(Ordered(word, entry.id))
                else:
                    log.warning("control %s is for epoch %d, passed over", entry.id, word.epoch)

    def done(self, event: Ordered) -> None:
        """The core has taken it in."""
        word, self.followed = event.word, event.entry
        if word.draining is not None:
            self.draining = word.draining
            log.info("takes no new work: %s", DRAINING) if word.draining else log.info("takes new work again")
        if word.flush:
            log.info("the prefix cache was flushed")
        if word.limits is not None:
            log.info("steps are bound by an administrator: %s", word.limits)
