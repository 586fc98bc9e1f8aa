"""Journals and publishes each step in one script, whatever the number of running sequences."""

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from pillion import clock
from pillion.actors import Exit, Stop
from pillion.bus import UNREACHABLE, Connection, DataLost, Keys, Lease, LeaseLost, retrying
from pillion.bus.keys import HOLDER_TTL, OUT_MAXLEN
from pillion.bus.ledger import Ledger
from pillion.bus.scripts import PUBLISH, RESTORE, RESTORED_AT_ONCE, SETTLE, Script
from pillion.contracts.entries import Refusal, StepOutput, Tokens, encode
from pillion.scheduler import usage
from pillion.scheduler.kept import Kept
from pillion.words import counted

log = logging.getLogger(__name__)

GROUP = "scheduler"
_QUEUE = 64  # steps that wait while Redis is slow; then planning waits
_TRIM_EVERY = 256  # publications
_UNREAD = 5.0  # seconds; what was told before was read


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that will not run: its entry is settled with this word. `life` None: it ends for good, else
    another life may follow this one.
    """

    refusal: Refusal
    gateway: str
    entry: str
    life: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    number: int
    items: tuple[Tokens, ...]
    finished: tuple[str, ...]
    parked: tuple[str, ...] = ()
    timelines: Mapping[str, bytes] = field(default_factory=dict)  # of those that finished or are parked


@dataclass(frozen=True, slots=True)
class Restore:
    """Put back what Redis may have lost; `done` is set then."""

    done: asyncio.Event


Word = Step | Refused | Restore


class Publisher:
    """Owns its connection and the ledger's folding. One word after the other, in order.

    The ledger holds what the journal holds, no more: so the journal can be written anew from it.
    """

    def __init__(
        self,
        connection: Connection,
        keys: Keys,
        replica: str,
        lease: Lease,
        ledger: Ledger,
        retention: float,
        consumer: str,
    ) -> None:
        """`consumer` is the group's member by which the entries came."""
        self.last = "0-0"  # the journal's last id, as far as known
        self._connection = connection
        self._keys = keys
        self._replica = replica
        self._lease = lease
        self._ledger = ledger
        self._retention = max(1, int(retention))
        self._consumer = consumer
        self._kept = Kept(self._retention)
        self._told: deque[tuple[float, bytes]] = deque(maxlen=256)  # the latest words to admission, and when
        self._queue: asyncio.Queue[Word] = asyncio.Queue(_QUEUE)
        self._current: Word | None = None
        self._since_trim = 0
        self._whole = asyncio.Event()  # not while entries get their new ids
        self._whole.set()

    async def put(self, word: Word) -> None:
        await self._queue.put(word)

    async def restore(self) -> None:
        """Puts back what Redis may have lost, after all that was put before."""
        done = asyncio.Event()
        await self.put(Restore(done))
        await done.wait()

    async def restored(self) -> None:
        """Waits for the end of putting back, if that is under way; then the entries' new ids are known."""
        await self._whole.wait()

    @property
    def idle(self) -> bool:
        return self._current is None and self._queue.empty()

    async def run(self) -> None:
        """Raises Stop where the lease is lost."""
        while True:
            if self._current is None:
                self._current = await self._queue.get()
            word = self._current
            try:
                match word:
                    case Step():
                        await self._publish(word)
                    case Refused():
                        await self._settle(word)
                    case Restore(done):
                        await self._restore()
                        done.set()
            except LeaseLost as error:
                raise Stop(Exit.LEASE_LOST, str(error)) from None
            self._current = None

    async def _publish(self, step: Step) -> None:
        # Folding happens here and not on arrival, so that a record never holds more than its journal.
        items = (*self._carried(step), *step.items)
        self._ledger.add(step.items)
        shares: dict[str, list[Tokens]] = {}
        for item in step.items:
            opened = self._ledger.get(item.request)
            if opened is not None:
                shares.setdefault(opened.request.gateway, []).append(item)
        folded = [
            (*self._ledger.close(request, parked, step.timelines.get(request, b"")), parked)
            for requests, parked in ((step.finished, False), (step.parked, True))
            for request in requests
            if request in self._ledger
        ]
        epoch = self._lease.epoch

        def entry(items: tuple[Tokens, ...]) -> bytes:
            return encode(StepOutput(replica=self._replica, epoch=epoch, step=step.number, items=items))

        keys = [
            self._lease.key,
            self._keys.journal(self._replica),
            self._keys.run(self._replica),
            self._keys.usage,
            *map(self._keys.out, shares),
            *(
                key(record.request)
                for _, record, _ in folded
                for key in (self._keys.record, self._keys.stream, self._keys.holder)
            ),
        ]
        ended = [(opened, record) for opened, record, _ in folded]
        told = usage.of_step(self._replica, step.items, ended, self._ledger, clock.wall())
        if told:
            self._told.append((clock.monotonic(), told))
        args: list[object] = [
            epoch,
            GROUP,
            entry(items),
            told,
            OUT_MAXLEN,
            self._retention,
            len(shares),
        ]
        args += [entry(tuple(items)) for items in shares.values()]
        for opened, record, parked in folded:
            payload = encode(record)
            self._kept.add(record.request, payload, clock.monotonic())
            args += [payload, opened.entry, opened.request.life, int(parked)]
        # A script whose answer was lost may run twice: positions are the same, readers drop what they know.
        answer = await self._script("publish", PUBLISH, keys, args)
        self.last = answer.decode()
        self._since_trim += 1
        if self._since_trim >= _TRIM_EVERY:
            self._since_trim = 0
            await self._trim()

    def _carried(self, step: Step) -> list[Tokens]:
        """What earlier lives brought, as the journal goes on from it: the record may end before this life."""
        items: list[Tokens] = []
        for name in {item.request: None for item in step.items}:
            opened = self._ledger.get(name)
            if opened is not None and opened.carried:
                opened.carried = False
                self._kept.drop(name)
                items += opened.items()
        return items

    async def _script(self, what: str, script: Script, keys: list[str], args: list[object]) -> bytes:
        """Where Redis was away, it may have been killed with its last words unwritten: what it may have lost
        is put back before anything follows, or the journal would have a gap."""
        away = False

        async def attempt() -> bytes:
            nonlocal away
            if away:
                await self._restore()
                away = False
            try:
                answer: bytes = await script(self._connection, keys, args)
            except UNREACHABLE:
                away = True
                raise
            return answer

        while True:
            try:
                return await retrying(what, attempt)
            except DataLost:
                await self._restore()

    async def _restore(self) -> None:
        self._whole.clear()
        try:
            await self._put_back()
        finally:
            self._whole.set()

    async def _put_back(self) -> None:
        """Entries, journal, holders and records, from memory; positions stay what they are."""
        opened, epoch, lost = list(self._ledger), self._lease.epoch, 0
        records = self._kept.present(clock.monotonic())
        for start in range(0, max(len(opened), 1), RESTORED_AT_ONCE):
            part = opened[start : start + RESTORED_AT_ONCE]
            keys = [
                self._lease.key, self._lease.lease, self._keys.run(self._replica),
                self._keys.journal(self._replica), *map(self._keys.record, records),
                *(self._keys.holder(each.request.id) for each in part),
            ]  # fmt: skip
            args: list[object] = [epoch, self._lease.milliseconds, GROUP, self._consumer, self._replica]
            args += [HOLDER_TTL, self._retention, len(records), *records.values()]
            for each in part:
                items = each.items()
                output = StepOutput(replica=self._replica, epoch=epoch, step=0, items=items)
                args += [each.entry, encode(each.request), encode(output) if items else b""]
            ids = await retrying("restore", lambda: RESTORE(self._connection, keys, args))  # noqa: B023
            for each, id in zip(part, ids, strict=True):
                lost += each.entry != id.decode()
                each.entry, each.carried = id.decode(), False
            records = {}
        for at, told in tuple(self._told):
            if clock.monotonic() - at < _UNREAD:
                await usage.tell(self._connection, self._keys, told)
        if lost:
            log.warning(
                "put back %s and %s; lost for good: %s",
                counted(lost, "running request"),
                counted(len(self._kept.present(clock.monotonic())), "record"),
                counted(self._kept.missing(clock.monotonic()), "older record"),
            )

    async def _trim(self) -> None:
        keep = self._ledger.oldest() or self.last
        journal = self._keys.journal(self._replica)
        await retrying("trim", lambda: self._connection.call("XTRIM", journal, "MINID", "~", keep))

    async def _settle(self, refused: Refused) -> None:
        output = StepOutput(
            replica=self._replica, epoch=self._lease.epoch, step=0, refusals=(refused.refusal,)
        )
        request = refused.refusal.request
        keys = [
            self._lease.key, self._keys.run(self._replica), self._keys.out(refused.gateway),
            self._keys.stream(request), self._keys.holder(request),
        ]  # fmt: skip
        final = refused.life is None
        says = ("refused", encode(refused.refusal)) if final else ("parked", refused.life)
        args = [self._lease.epoch, GROUP, refused.entry, encode(output), OUT_MAXLEN, *says]
        await self._script("refuse", SETTLE, keys, args)
        await usage.tell(self._connection, self._keys, usage.unused(self._replica, request))
