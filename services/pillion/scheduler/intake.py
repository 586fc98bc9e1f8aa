"""Reads run entries: those that a predecessor held, then new ones."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from pillion.bus import Connection, Entry, Group, Keys, Reader, append, retrying
from pillion.bus.dead import Dead, read_request
from pillion.bus.journal import read_items
from pillion.bus.keys import DEAD_MAXLEN
from pillion.bus.ledger import Ledger, Opened
from pillion.contracts.entries import Record, Request
from pillion.scheduler import usage
from pillion.scheduler.messages import Cancelled
from pillion.scheduler.publisher import Refused

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Read:
    """A request's entry, with what else Redis has of it."""

    entry: Entry
    request: Request
    record: Record | None
    cancelled: Cancelled | None


class Intake:
    """Owns the connection that waits for entries. `accept` gets each request, with what is journalled of it,
    and how it was cancelled before, if it was; `refuse` gets what is set aside.

    A request that was parked comes with its record, and goes on from there.
    """

    def __init__(
        self,
        connection: Connection,
        group: Group,
        keys: Keys,
        replica: str,
        ledger: Ledger,
        accept: Callable[[Opened, Cancelled | None], Awaitable[None]],
        refuse: Callable[[Refused], Awaitable[None]],
        read: Reader,
    ) -> None:
        self.lock = asyncio.Lock()  # held while what was read is not yet in the ledger
        self.last = "0-0"  # the last entry consumed; tells admission what the heartbeat has counted
        self.dead = 0  # entries set aside
        self._connection = connection
        self._group = group
        self._keys = keys
        self._replica = replica
        self._ledger = ledger
        self._accept = accept
        self._refuse = refuse
        self._reader = read

    async def recover(self) -> int:
        """Takes over by right of the lease what others held. Answers how many requests go on."""
        recovered = 0
        while entries := await retrying("claim", self._group.claim_others):
            requests = await self._read(entries)
            ids = {read.request.id for read in requests}
            items = await retrying(
                "journal", partial(read_items, self._connection, self._keys, self._replica, self._reader, ids)
            )
            for read in requests:
                self._ledger.open(read.request, read.entry.id, "0-0", read.record)
            self._ledger.add(items)
            for read in requests:
                await self._hand_on(read)
            recovered += len(requests)
        return recovered

    async def run(self, journal_last: Callable[[], str], restored: Callable[[], Awaitable[None]]) -> None:
        """`restored` waits where entries are being put back after a loss."""
        async for entries in self._group.follow():
            async with self.lock:
                await self._take(entries, journal_last, restored)

    async def _take(
        self,
        entries: list[Entry],
        journal_last: Callable[[], str],
        restored: Callable[[], Awaitable[None]],
    ) -> None:
        for read in await self._read(entries):
            known = self._ledger.get(read.request.id)
            if known is None:
                self._ledger.open(read.request, read.entry.id, journal_last(), read.record)
                await self._hand_on(read)
                continue
            if known.entry != read.entry.id:
                await restored()  # an entry that was put back may be read before its id is known here
            if known.entry != read.entry.id:
                await self._acknowledge(read.entry)
        self.last = entries[-1].id

    async def _hand_on(self, read: _Read) -> None:
        opened = self._ledger.get(read.request.id)
        if opened is not None:
            await self._accept(opened, read.cancelled)

    async def _read(self, entries: list[Entry]) -> list[_Read]:
        """What is to run of these entries, in order."""
        requests = []
        for entry in entries:
            found = read_request(entry, "to run it")
            if isinstance(found, Dead):
                await self._set_aside(found)
            else:
                requests.append((entry, found))
        if not requests:
            return []
        named = [request.id for _, request in requests]
        keys = [
            of(name) for of in (self._keys.tombstone, self._keys.parking, self._keys.record) for name in named
        ]
        kept = await retrying("records", lambda: self._connection.call("MGET", *keys))
        size = len(named)
        result = []
        for index, (entry, request) in enumerate(requests):
            tomb, parking, payload = kept[index::size]
            # One that cannot be read is computed again from the prompt, to the same tokens.
            record = payload and self._reader(payload, Record, f"of request {request.id}")
            if record is not None and record.finished:
                log.info("request %s has ended before, its entry is dropped", request.id)
                await self._acknowledge(entry, self._keys.holder(request.id))
                await usage.tell(self._connection, self._keys, usage.unused(self._replica, request.id))
                continue
            cancelled = None
            if tomb is not None:
                cancelled = Cancelled(request.id)
            elif parking is not None and int(parking) >= request.life:
                cancelled = Cancelled(request.id, park=True, life=int(parking))
            result.append(_Read(entry, request, record, cancelled))
        return result

    async def _set_aside(self, dead: Dead) -> None:
        log.error("entry %s %s; set aside in %s", dead.entry.id, dead.reason, self._keys.dead)
        self.dead += 1
        letter = dead.entry.payload
        await retrying("dead letter", lambda: append(self._connection, self._keys.dead, letter, DEAD_MAXLEN))
        if dead.refusal is not None:
            await self._refuse(Refused(dead.refusal, dead.gateway, dead.entry.id))
        else:
            await self._acknowledge(dead.entry)

    async def _acknowledge(self, entry: Entry, *holder: str) -> None:
        """`holder` is there where no other entry has the same request."""
        key, group = self._group.key, self._group.group
        commands = [
            ("XACK", key, group, entry.id),
            ("XDEL", key, entry.id),
            *(("DEL", name) for name in holder),
        ]
        await retrying("acknowledge", lambda: self._connection.pipeline(*commands))
