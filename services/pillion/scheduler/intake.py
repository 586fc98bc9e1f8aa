"""Reads run entries: those that a predecessor held, then new ones."""

import logging
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from pillion.bus import MAX_DELIVERIES, Connection, Entry, Group, Keys, retrying
from pillion.bus.journal import read_items
from pillion.contracts.entries import Refusal, Request, UnknownSchema, decode
from pillion.scheduler.journal import Ledger, Opened
from pillion.scheduler.publisher import Refused

log = logging.getLogger(__name__)


class Intake:
    """Owns the connection that waits for entries. `accept` gets each request, with what is journalled of it,
    and whether it was cancelled before; `refuse` gets what is set aside.
    """

    def __init__(
        self,
        connection: Connection,
        group: Group,
        keys: Keys,
        replica: str,
        ledger: Ledger,
        accept: Callable[[Opened, bool], Awaitable[None]],
        refuse: Callable[[Refused], Awaitable[None]],
    ) -> None:
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
            requests = [(entry, request) for entry in entries if (request := await self._decode(entry))]
            ids = {request.id for _, request in requests}
            read = partial(read_items, self._connection, self._keys, self._replica, ids)
            items = await retrying("journal", read)
            for entry, request in requests:
                self._ledger.open(request, entry.id, since="0-0")
            self._ledger.add(items)
            await self._hand_on([request for _, request in requests])
            recovered += len(requests)
        return recovered

    async def run(self, journal_last: Callable[[], str]) -> None:
        async for entries in self._group.follow():
            requests = []
            for entry in entries:
                request = await self._decode(entry)
                if request is None:
                    continue
                if request.id in self._ledger:
                    await self._acknowledge(entry)  # submitted again after a loss that was none
                else:
                    self._ledger.open(request, entry.id, since=journal_last())
                    requests.append(request)
            await self._hand_on(requests)
            self.last = entries[-1].id

    async def _hand_on(self, requests: list[Request]) -> None:
        if not requests:
            return
        tombs = [self._keys.tombstone(request.id) for request in requests]
        cancelled = await retrying("tombstones", lambda: self._connection.call("MGET", *tombs))
        for request, tomb in zip(requests, cancelled, strict=True):
            opened = self._ledger.get(request.id)
            if opened is not None:
                await self._accept(opened, tomb is not None)

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

    async def _acknowledge(self, entry: Entry) -> None:
        key, group = self._group.key, self._group.group
        commands = (("XACK", key, group, entry.id), ("XDEL", key, entry.id))
        await retrying("acknowledge", lambda: self._connection.pipeline(*commands))
