"""Carries out what the policy decides. The one writer: one action after the other, each one script."""

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass

from pillion import clock
from pillion.actors import Exit, Mailbox, Stop
from pillion.admission import words
from pillion.admission.line import Waiting, prompt_tokens
from pillion.admission.policy import (
    LEVELS,
    Action,
    Arrived,
    CameTrue,
    Cancelled,
    Drop,
    End,
    Event,
    Forward,
    Forwarded,
    Generation,
    Gone,
    Heard,
    Policy,
    Refuse,
    Reported,
    Restored,
    Returned,
    Woken,
)
from pillion.admission.spans import GROUP, Spans
from pillion.bus import Connection, DataLost, Entry, Keys, Lease, LeaseLost, Reader, append, retrying
from pillion.bus.dead import Dead, read_request
from pillion.bus.keys import DEAD_MAXLEN, HOLDER_TTL, OUT_MAXLEN
from pillion.bus.loss import age
from pillion.bus.scripts import DISCARD, HAND_OVER, RESTORE, RESTORED_AT_ONCE, SETTLE, WRITE, Script
from pillion.contracts.entries import Cancel, Heartbeat, Queue, Request, Usage, encode
from pillion.telemetry import Metrics, names
from pillion.words import counted

log = logging.getLogger(__name__)

YOUNG = 10.0  # seconds; data that is older was there when the replicas were heard first

METRICS = (
    names.QUEUE_REQUESTS,
    names.QUEUE_WAIT,
    names.REJECTIONS,
    names.PROMPT_TOKENS_ARRIVED,
    names.TTFT_OVER_PREDICTED,
    names.DEAD_LETTERS,
)


@dataclass(frozen=True, slots=True)
class Submissions:
    """Entries of the `submit` stream."""

    entries: list[Entry]


@dataclass(frozen=True, slots=True)
class Cancels:
    cancels: list[Cancel]


@dataclass(frozen=True, slots=True)
class Beats:
    """Heartbeats; `live` False for those found in Redis at the start."""

    beats: list[Heartbeat]
    live: bool = True


@dataclass(frozen=True, slots=True)
class Words:
    """Of the `usage` stream, with their entry ids."""

    words: list[tuple[str, Usage]]


@dataclass(frozen=True, slots=True)
class Data:
    """Redis holds this generation of the stack's data."""

    generation: str


@dataclass(frozen=True, slots=True)
class TakenBack:
    """What the replica held waits in `submit` again."""

    replica: str


Message = Submissions | Cancels | Beats | Words | Data | TakenBack


class Desk:
    """An actor: owns the policy and the connection that writes.

    What waits is in Redis, and here; where Redis loses it, it is put back before anything else is done.
    """

    def __init__(
        self,
        policy: Policy,
        connection: Connection,
        keys: Keys,
        lease: Lease,
        metrics: Metrics,
        spans: Spans,
        consumer: str,
    ) -> None:
        """`consumer` is the group's member by which the entries came."""
        self.mailbox: Mailbox[Message] = Mailbox(capacity=4)
        self.replicas = policy.replicas
        self._consumer = consumer
        self._lost = False  # a script found that Redis has lost data
        self._policy = policy
        self._connection = connection
        self._keys = keys
        self._lease = lease
        self._metrics = metrics
        self._read = Reader(metrics.unreadable)
        self._spans = spans
        self.queue = self._gauge()

    async def run(self) -> None:
        """Raises Stop where the lease is lost."""
        try:
            while True:
                message = await self._next()
                await self._unless_lost(self._message(message))
                while self._lost:
                    # Nothing goes on until it is known which data there is now.
                    self._policy.handle(Generation(""), clock.wall())
                    await self._unless_lost(self._put_back())
                self.queue = self._gauge()
        except LeaseLost as error:
            raise Stop(Exit.LEASE_LOST, str(error)) from None

    async def _unless_lost(self, doing: Coroutine[None, None, None]) -> None:
        try:
            await doing
        except DataLost:
            self._lost = True

    async def _next(self) -> Message | None:
        """None when a deadline has come before the next message."""
        wake_at = self._policy.wake_at
        if wake_at is None:
            return await self.mailbox.get()
        left = wake_at - clock.wall()
        if left <= 0:
            return None
        try:
            async with asyncio.timeout(left):
                return await self.mailbox.get()
        except TimeoutError:
            return None

    async def _message(self, message: Message | None) -> None:
        match message:
            case None:
                await self._events([Woken()])
            case Submissions(entries):
                await self._submissions(entries)
            case Cancels(cancels):
                await self._events(
                    [Cancelled(each.request, each.choice, each.park, each.life) for each in cancels]
                )
            case Beats(beats, live):
                await self._events([Heard(beat, live) for beat in beats])
            case Words(words_):
                await self._events([Reported(usage, entry) for entry, usage in words_])
            case Data(generation):
                await self._put_back()
                young = age(generation, clock.wall()) < YOUNG
                await self._events([Generation(generation, quiet=young)])
            case TakenBack(replica):
                await self._events([Gone(replica)])

    async def _submissions(self, entries: list[Entry]) -> None:
        requests = []
        for entry in entries:
            found = read_request(entry, "to admit it")
            if isinstance(found, Dead):
                await self._set_aside(found)
            else:
                requests.append((entry.id, found))
        if not requests:
            return
        # Looked at here and not on reading: a cancel that was handled before this left its tombstone before.
        tombstones = [self._keys.tombstone(request.id) for _, request in requests]
        cancelled = await retrying("tombstones", lambda: self._connection.call("MGET", *tombstones))
        events: list[Event] = []
        for (entry_id, request), tombstone in zip(requests, cancelled, strict=True):
            self._metrics[names.PROMPT_TOKENS_ARRIVED].inc(prompt_tokens(request))
            events.append(Arrived(request, entry_id, tombstone is not None))
        await self._events(events)

    async def _events(self, events: Sequence[Event]) -> None:
        """The accounts are kept before anything is done: what a successor finds done it finds set aside."""
        actions = [action for event in events for action in self._policy.handle(event, clock.wall())]
        try:
            await self._keep()
        except DataLost:
            self._lost = True
        for action in actions:
            await self._act(action)

    async def _keep(self) -> None:
        """Writes what changed in the tenants' accounts, in one script."""
        hashes = self._policy.tenants.changes()
        if not any(hashes):
            return
        keys = [self._lease.key, self._keys.tenants, self._keys.reserved]
        args: list[object] = [self._lease.epoch]
        for pairs in hashes:
            args.append(len(pairs))
            for pair in pairs.items():
                args += pair
        await retrying("accounts", lambda: WRITE(self._connection, keys, args))

    async def restore(self) -> str | None:
        """Takes over the accounts of a predecessor. Answers the entry from which on ends are of interest."""
        tenants, reserved = await retrying(
            "accounts",
            lambda: self._connection.pipeline(
                ("HGETALL", self._keys.tenants), ("HGETALL", self._keys.reserved)
            ),
        )
        for kind, where, error in self._policy.restore(_decoded(tenants), _decoded(reserved)):
            self._read.aside(kind, where, error)
        return self._policy.tenants.oldest()

    async def _act(self, action: Action) -> None:
        try:
            await self._do(action)
        except DataLost:
            self._lost = True
            if isinstance(action, Forward):
                self._policy.handle(Returned(action.waiting, action.replica), clock.wall())
            # What else was to be said is said when the gateway submits the request again.

    async def _do(self, action: Action) -> None:
        match action:
            case Forward(waiting, replica):
                self._metrics[names.QUEUE_WAIT].observe(max(clock.wall() - waiting.since, 0.0))
                request = self._spans.forwarded(waiting, replica)
                entry = await self._hand_over(waiting.entry, request, replica)
                if entry is None:
                    log.info("request %s had gone on before", request.id)
                forwarded = Forwarded(waiting.entry, replica, entry)
                self._policy.handle(forwarded, clock.wall())
            case Refuse(waiting, refusal, reason):
                self._spans.ended(waiting, reason)
                self._metrics[names.REJECTIONS].labels(reason).inc()
                log.info("request %s refused with %d: %s", refusal.request, refusal.status, refusal.message)
                await self._settle(waiting, words.refused(refusal, self._lease.epoch))
            case End(waiting, park=False):
                self._spans.ended(waiting, "cancelled")
                log.info("request %s cancelled while it waited", waiting.request.id)
                await self._settle(waiting, words.cancelled(waiting, self._lease.epoch))
            case End(waiting):
                self._spans.ended(waiting, "parked")
                log.info("request %s parked while it waited", waiting.request.id)
                request = waiting.request
                await self._discard(waiting.entry, (self._keys.stream(request.id),), (request.life,))
            case CameTrue(predicted, came):
                if predicted > 0:
                    self._metrics[names.TTFT_OVER_PREDICTED].observe(came / predicted)
            case Drop(entry_id):
                await self._discard(entry_id)

    async def _set_aside(self, dead: Dead) -> None:
        log.error("entry %s %s; set aside in %s", dead.entry.id, dead.reason, self._keys.dead)
        self._metrics[names.DEAD_LETTERS].inc()
        if dead.refusal is not None:
            # Said first: a crash between the two says it twice, and the second is for nobody.
            out, word = self._keys.out(dead.gateway), words.refused(dead.refusal, self._lease.epoch)
            await retrying("refusal", lambda: append(self._connection, out, word, OUT_MAXLEN))
        refusal = dead.refusal
        await self._script(
            SETTLE, self._keys.dead, dead.entry.id, dead.entry.payload, DEAD_MAXLEN,
            "refused", encode(refusal) if refusal else b"",
            head=self._keys.stream(refusal.request) if refusal else None,
        )  # fmt: skip

    async def _settle(self, waiting: Waiting, word: bytes) -> None:
        request = waiting.request
        head, life = self._keys.stream(request.id), request.life
        out = self._keys.out(request.gateway)
        await self._script(SETTLE, out, waiting.entry, word, OUT_MAXLEN, "parked", life, head=head)

    async def _discard(self, entry: str, head: tuple[str, ...] = (), life: tuple[int, ...] = ()) -> None:
        keys = [self._lease.key, self._keys.submit, *head]
        args = [self._lease.epoch, GROUP, entry, *life]
        await retrying("discard", lambda: DISCARD(self._connection, keys, args))

    async def _hand_over(self, entry: str, request: Request, replica: str) -> str | None:
        keys = [
            self._lease.key, self._keys.submit, self._keys.run(replica), self._keys.holder(request.id),
        ]  # fmt: skip
        args = [self._lease.epoch, GROUP, entry, encode(request), replica, HOLDER_TTL]
        answer = await retrying("hand-over", lambda: HAND_OVER(self._connection, keys, args))
        return None if answer is None else answer.decode()

    async def _put_back(self) -> None:
        """Puts what waits back into `submit`, where it is not there any more, and the tenants' accounts.

        Raises DataLost where it was lost again.
        """
        self._lost = False
        if not self._lease.epoch:
            return  # standing by
        waiting = list(self._policy.line)
        restored: dict[str, str] = {}
        for start in range(0, max(len(waiting), 1), RESTORED_AT_ONCE):
            part = waiting[start : start + RESTORED_AT_ONCE]
            keys = [self._lease.key, self._lease.lease, self._keys.submit, self._keys.submit]
            args: list[object] = [self._lease.epoch, self._lease.milliseconds, GROUP, self._consumer]
            args += ["", 0, 0, 0]  # no holders, no records
            for each in part:
                args += [each.entry, encode(each.request), b""]
            ids = await retrying("restore", lambda: RESTORE(self._connection, keys, args))  # noqa: B023
            restored |= {each.request.id: id.decode() for each, id in zip(part, ids, strict=True)}
        moved = sum(each.entry != restored[each.request.id] for each in waiting)
        if moved:
            log.warning("put back, since Redis lost its data: %s", counted(moved, "waiting request"))
        self._policy.handle(Restored(restored), clock.wall())
        self._policy.tenants.keep_all()
        await self._keep()

    async def _script(
        self, script: Script, destination: str, entry: str, *args: object, head: str | None = None
    ) -> str | None:
        """Moves on from `submit`, once: repeated after a lost answer it finds the entry gone, and is None."""
        keys = [self._lease.key, self._keys.submit, destination, *([head] if head else [])]
        values = [self._lease.epoch, GROUP, entry, *args]
        answer = await retrying("hand-over", lambda: script(self._connection, keys, values))
        return None if answer is None else answer.decode()

    def _gauge(self) -> Queue:
        counts = self._policy.waiting()
        for level in LEVELS:
            self._metrics[names.QUEUE_REQUESTS].labels(level).set(counts[level])
        return Queue({level: counts[level] for level in LEVELS}, self._policy.line.tokens)


def _decoded(pairs: Mapping[bytes, bytes]) -> dict[str, bytes]:
    return {field.decode(): value for field, value in pairs.items()}
