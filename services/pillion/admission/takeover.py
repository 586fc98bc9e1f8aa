"""Takes back what a dead replica holds, or one that has gone, and lets others run it.

By right of the replica's own lease: its scheduler, should it live, finds its epoch followed by ours and ends.
Should it come back, it finds nothing to do.
"""

import asyncio
import logging

import msgspec

from pillion import clock
from pillion.admission.desk import Desk, TakenBack
from pillion.bus import UNREACHABLE, Connection, DataLost, Keys, Lease, LeaseLost, Reader
from pillion.bus.journal import read_items, read_record
from pillion.bus.ledger import HistoryDiffers, Ledger, Opened
from pillion.bus.scripts import CLEAR, TAKE_BACK
from pillion.config import Scheduler
from pillion.contracts.entries import Record, Request, UnknownSchema, decode, encode

log = logging.getLogger(__name__)

LOOK = 0.5  # seconds between looks
GROUP = "scheduler"


class Vigil:
    """Who is dead: suspected, and without a lease that anybody took, for `patience` seconds on end. Pure."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._since: dict[str, float] = {}
        self._looked = float("-inf")

    def look(self, missing: dict[str, bool], now: float) -> list[str]:
        """`missing`: suspects without a lease, and whether they said that they go: those are dead at once."""
        if now - self._looked > 4 * LOOK:
            self._since = {}  # we were away ourselves, and others could not say anything to us
        self._looked = now
        self._since = {name: self._since.get(name, now) for name in missing}
        return [name for name, went in missing.items() if went or now - self._since[name] >= self._patience]


class TakeOver:
    """An actor of the active admission."""

    def __init__(
        self, connection: Connection, keys: Keys, settings: Scheduler, desk: Desk, read: Reader
    ) -> None:
        self._connection = connection
        self._read = read
        self._keys = keys
        self._settings = settings
        self._desk = desk
        self._vigil = Vigil(settings.replica_timeout)

    async def run(self) -> None:
        while True:
            try:
                await self.look()
            except UNREACHABLE:
                self._vigil = Vigil(self._settings.replica_timeout)  # nobody can say anything now
            await asyncio.sleep(LOOK)

    async def look(self) -> None:
        """Raises RedisError."""
        suspects = self._desk.replicas.suspects(clock.wall())
        leases = [self._keys.lease(f"replica:{name}") for name in suspects]
        words = await self._connection.call("MGET", *leases) if leases else []
        missing = {
            name: went for (name, went), word in zip(suspects.items(), words, strict=True) if word is None
        }
        for name in self._vigil.look(missing, clock.monotonic()):
            if self._desk.replicas.heirs(name, clock.wall()):
                await self.take(name)

    async def take(self, name: str) -> None:
        """Puts its requests back into `submit`, each with what it has brought. Raises RedisError."""
        lease = Lease(self._connection, self._keys, f"replica:{name}", self._settings.lease_seconds)
        if not await lease.try_acquire():
            return  # its successor was quicker
        try:
            taken = await self._take(name, lease)
            keys = [lease.key, self._keys.run(name), self._keys.journal(name), self._keys.replicas]
            await CLEAR(self._connection, keys, [lease.epoch, name])
            await self._desk.mailbox.put(TakenBack(name))
            level = logging.WARNING if taken else logging.INFO  # as where a stack begins anew with fewer
            log.log(level, "replica %s is gone: %d of its requests go to others", name, taken)
        except (LeaseLost, DataLost) as error:
            log.warning("replica %s: what is left is its successor's: %s", name, error)
        finally:
            await lease.release()

    async def _take(self, name: str, lease: Lease) -> int:
        run, ledger = self._keys.run(name), Ledger()
        rows = await self._connection.call("XRANGE", run, "-", "+")
        for row in rows:
            request = _request(row[1][1])
            if request is not None:
                record = await read_record(self._connection, self._keys, request.id, self._read)
                if record is None or not record.finished:
                    ledger.open(request, row[0].decode(), "0-0", record)
        for item in await read_items(self._connection, self._keys, name, self._read):
            try:
                ledger.add((item,))
            except HistoryDiffers as error:
                log.error("replica %s: left to its successor: %s", name, error)
                ledger.close(item.request)
        taken = len(ledger)
        for opened in ledger:
            _, record = ledger.close(opened.request.id, parked=True)
            brought = any(choice.tokens or choice.finish for choice in record.choices)
            await self._give(name, lease, opened, record if brought else None)
        return taken

    async def _give(self, name: str, lease: Lease, opened: Opened, record: Record | None) -> None:
        """Hands one request back, once, with what it has brought."""
        request, keys = opened.request, self._keys
        fingerprint = self._desk.replicas[name].fingerprint if record is not None else request.fingerprint
        again = msgspec.structs.replace(request, resumed=True, fingerprint=fingerprint)
        await TAKE_BACK(
            self._connection,
            [lease.key, keys.run(name), keys.submit, keys.record(request.id), keys.holder(request.id)],
            [
                lease.epoch, GROUP, opened.entry, encode(again),
                b"" if record is None else encode(record), max(1, int(self._settings.journal_retention)),
            ],
        )  # fmt: skip


def _request(payload: bytes) -> Request | None:
    """None where it cannot be read: its successor sets it aside."""
    try:
        return decode(payload, Request)
    except (UnknownSchema, msgspec.DecodeError):
        return None
