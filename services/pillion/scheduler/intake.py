"""Reads run entries: those that a predecessor held, then new ones."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import msgspec

from pillion.bus import MAX_DELIVERIES, Connection, Entry, Group, Keys, append, retrying
from pillion.bus.journal import read_items
from pillion.bus.ledger import Ledger, Opened
from pillion.contracts.entries import Record, Refusal, Request, Spent, UnknownSchema, Usage, decode, encode
from pillion.scheduler.messages import Cancelled
from pillion.scheduler.publisher import OUT_MAXLEN, Refused

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

    async def recover(self) -> int:
        """Takes over by right of the lease what others held. Answers how many requests go on."""
        recovered = 0
        while entries := await retrying("claim", self._group.claim_others):
            requests = await self._read(entries)
            ids = {read.request.id for read in requests}
            items = await retrying(
                "journal", partial(read_items, self._connection, self._keys, self._replica, ids)
            )
            for read in requests:
                self._ledger.open(read.request, read.entry.id, "0-0", read.record)
            self._ledger.add(items)
            for read in requests:
                await self._hand_on(read)
            recovered += len(requests)
        return recovered

    async def run(self, journal_last: Callable[[], str]) -> None:
        async for entries in self._group.follow():
            async with self.lock:
                await self._take(entries, journal_last)

    async def _take(self, entries: list[Entry], journal_last: Callable[[], str]) -> None:
        for read in await self._read(entries):
            known = self._ledger.get(read.request.id)
            if known is None:
                self._ledger.open(read.request, read.entry.id, journal_last(), read.record)
                await self._hand_on(read)
            elif known.entry != read.entry.id:  # else it was put back after a loss, and is read again
                await self._acknowledge(read.entry)
        self.last = entries[-1].id

    async def _hand_on(self, read: _Read) -> None:
        opened = self._ledger.get(read.request.id)
        if opened is not None:
            await self._accept(opened, read.cancelled)

    async def _read(self, entries: list[Entry]) -> list[_Read]:
        """What is to run of these entries, in order."""
        requests = [(entry, request) for entry in entries if (request := await self._decode(entry))]
        if not requests:
            return []
        named = [request.id for _, request in requests]
        keys = [
            of(name) for of in (self._keys.tombstone, self._keys.parking, self._keys.record) for name in named
        ]
        found = await retrying("records", lambda: self._connection.call("MGET", *keys))
        size = len(named)
        result = []
        for index, (entry, request) in enumerate(requests):
            tomb, parking, kept = found[index::size]
            record = _record(request, kept)
            if record is not None and record.finished:
                log.info("request %s has ended before, its entry is dropped", request.id)
                await self._acknowledge(entry, self._keys.holder(request.id))
                usage = encode(Usage(self._replica, ended=(Spent(request.id),)))
                await retrying(
                    "usage", partial(append, self._connection, self._keys.usage, usage, OUT_MAXLEN)
                )
                continue
            cancelled = None
            if tomb is not None:
                cancelled = Cancelled(request.id)
            elif parking is not None and int(parking) >= request.life:
                cancelled = Cancelled(request.id, park=True, life=int(parking))
            result.append(_Read(entry, request, record, cancelled))
        return result

    async def _decode(self, entry: Entry) -> Request | None:
        try:
            request = decode(entry.payload, Request)
        except (UnknownSchema, msgspec.DecodeError) as error:
            log.error("entry %s cannot be read, set aside: %s", entry.id, error)
            await self._set_aside(entry)
            await self._acknowledge(entry)
            return None
        if entry.deliveries > MAX_DELIVERIES:
            log.error("request %s was delivered %d times, set aside", request.id, entry.deliveries)
            await self._set_aside(entry)
            message = f"the request was given up after {MAX_DELIVERIES} attempts to run it"
            refusal = Refusal(request.id, 500, message, type="server_error", code="poison_request")
            await self._refuse(Refused(refusal, request.gateway, entry.id))
            return None
        return request

    async def _set_aside(self, entry: Entry) -> None:
        self.dead += 1
        command = ("XADD", self._keys.dead, "MAXLEN", "~", 1000, "*", "e", entry.payload)
        await retrying("dead letter", lambda: self._connection.call(*command))

    async def _acknowledge(self, entry: Entry, *holder: str) -> None:
        """`holder` is there where no other entry has the same request."""
        key, group = self._group.key, self._group.group
        commands = [
            ("XACK", key, group, entry.id),
            ("XDEL", key, entry.id),
            *(("DEL", name) for name in holder),
        ]
        await retrying("acknowledge", lambda: self._connection.pipeline(*commands))


def _record(request: Request, kept: bytes | None) -> Record | None:
    try:
        return None if kept is None else decode(kept, Record)
    except (UnknownSchema, msgspec.DecodeError) as error:
        # Computed again from the prompt, to the same tokens.
        log.error("the record of request %s cannot be read: %s", request.id, error)
        return None
