"""Journals and publishes each step in one script, whatever the number of running sequences."""

import asyncio
import logging
from dataclasses import dataclass

from pillion import clock
from pillion.actors import Exit, Stop
from pillion.bus import Connection, Keys, Lease, LeaseLost, append, retrying
from pillion.bus.scripts import PUBLISH, SETTLE
from pillion.contracts.entries import Record, Refusal, Spent, StepOutput, Tokens, Usage, encode
from pillion.scheduler.journal import Ledger, Opened

log = logging.getLogger(__name__)

GROUP = "scheduler"
OUT_MAXLEN = 20_000  # entries of a gateway's stream; a gateway that is further behind reads the journal
_QUEUE = 64  # steps that wait while Redis is slow; then planning waits
_TRIM_EVERY = 256  # publications


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that will not run: its entry is settled with this word. `life` None: nor in a later life."""

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


class Publisher:
    """Owns its connection and the ledger's folding. One word after the other, in order."""

    def __init__(
        self, connection: Connection, keys: Keys, replica: str, lease: Lease, ledger: Ledger, retention: float
    ) -> None:
        self.last = "0-0"  # the journal's last id, as far as known
        self._connection = connection
        self._keys = keys
        self._replica = replica
        self._lease = lease
        self._ledger = ledger
        self._retention = max(1, int(retention))
        self._queue: asyncio.Queue[Step | Refused] = asyncio.Queue(_QUEUE)
        self._current: Step | Refused | None = None
        self._since_trim = 0

    async def put(self, word: Step | Refused) -> None:
        await self._queue.put(word)

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
                if isinstance(word, Step):
                    await self._publish(word)
                else:
                    await self._settle(word)
            except LeaseLost as error:
                raise Stop(Exit.LEASE_LOST, str(error)) from None
            self._current = None

    async def _publish(self, step: Step) -> None:
        # Folding happens here and not on arrival, so that a record never holds more than its journal.
        self._ledger.add(step.items)
        shares: dict[str, list[Tokens]] = {}
        for item in step.items:
            opened = self._ledger.get(item.request)
            if opened is not None:
                shares.setdefault(opened.request.gateway, []).append(item)
        folded = [
            (*self._ledger.close(request, parked), parked)
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
                for key in (self._keys.record, self._keys.stream)
            ),
        ]
        usage = self._usage(step.items, [(opened, record) for opened, record, _ in folded])
        args: list[object] = [
            epoch,
            GROUP,
            entry(step.items),
            usage,
            OUT_MAXLEN,
            self._retention,
            len(shares),
        ]
        args += [entry(tuple(items)) for items in shares.values()]
        for opened, record, parked in folded:
            args += [encode(record), opened.entry, opened.request.life, int(parked)]
        # A script whose answer was lost may run twice: positions are the same, readers drop what they know.
        answer = await retrying("publish", lambda: PUBLISH(self._connection, keys, args))
        self.last = answer.decode()
        self._since_trim += 1
        if self._since_trim >= _TRIM_EVERY:
            self._since_trim = 0
            await self._trim()

    def _usage(self, items: tuple[Tokens, ...], folded: list[tuple[Opened, Record]]) -> bytes:
        """For admission; empty where nobody got a first token or ended."""
        now = clock.wall()
        first = []
        for item in items:
            if item.position == 0 and item.choice == 0 and item.tokens:
                # One that ends with its first token is no longer open.
                opened = self._ledger.get(item.request) or next(
                    (opened for opened, _ in folded if opened.request.id == item.request), None
                )
                if opened is not None:
                    first.append((item.request, max(now - opened.request.arrival, 0.0)))
        ended = tuple(_spent(opened, record) for opened, record in folded)
        if not first and not ended:
            return b""
        return encode(Usage(self._replica, tuple(first), ended))

    async def _trim(self) -> None:
        keep = self._ledger.oldest() or self.last
        journal = self._keys.journal(self._replica)
        await retrying("trim", lambda: self._connection.call("XTRIM", journal, "MINID", "~", keep))

    async def _settle(self, refused: Refused) -> None:
        output = StepOutput(
            replica=self._replica, epoch=self._lease.epoch, step=0, refusals=(refused.refusal,)
        )
        keys = [self._lease.key, self._keys.run(self._replica), self._keys.out(refused.gateway)]
        args = [self._lease.epoch, GROUP, refused.entry, encode(output), OUT_MAXLEN]
        if refused.life is not None:
            keys.append(self._keys.stream(refused.refusal.request))
            args.append(refused.life)
        await retrying("refuse", lambda: SETTLE(self._connection, keys, args))
        usage = encode(Usage(self._replica, ended=(Spent(refused.refusal.request),)))
        await retrying("usage", lambda: append(self._connection, self._keys.usage, usage, OUT_MAXLEN))


def _spent(opened: Opened, record: Record) -> Spent:
    """`prompts[i]` is computed for each of its `n` choices, less what was cached. Output of earlier lives was
    counted then.
    """
    request = opened.request
    prompt = sum(
        len(request.prompts[index // request.n]) - choice.cached
        for index, choice in enumerate(record.choices)
    )
    output = sum(len(choice.tokens) for choice in record.choices) - opened.earlier
    return Spent(request.id, max(prompt, 0), max(output, 0))
