"""Carries out what the policy decides. The one writer: one action after the other, each one script."""

import asyncio
import logging
from dataclasses import dataclass

from pillion import clock
from pillion.actors import Exit, Mailbox, Stop
from pillion.admission import words
from pillion.admission.line import Waiting, prompt_tokens
from pillion.admission.policy import (
    LEVELS,
    Action,
    Arrived,
    Cancelled,
    Drop,
    End,
    Event,
    Forward,
    Forwarded,
    Heard,
    Policy,
    Refuse,
    Woken,
)
from pillion.admission.spans import GROUP, Spans
from pillion.bus import Connection, Entry, Keys, Lease, LeaseLost, append, retrying
from pillion.bus.scripts import DISCARD, HAND_OVER, SETTLE, Script
from pillion.contracts.entries import Cancel, Heartbeat, encode
from pillion.telemetry import Metrics, names

log = logging.getLogger(__name__)

OUT_MAXLEN = 20_000  # entries of a gateway's stream
DEAD_MAXLEN = 1_000  # entries set aside that are kept for whoever looks

METRICS = (names.QUEUE_REQUESTS, names.REJECTIONS, names.PROMPT_TOKENS_ARRIVED, names.DEAD_LETTERS)


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


Message = Submissions | Cancels | Beats


class Desk:
    """An actor: owns the policy and the connection that writes."""

    def __init__(
        self, policy: Policy, connection: Connection, keys: Keys, lease: Lease, metrics: Metrics, spans: Spans
    ) -> None:
        self.mailbox: Mailbox[Message] = Mailbox(capacity=4)
        self._policy = policy
        self._connection = connection
        self._keys = keys
        self._lease = lease
        self._metrics = metrics
        self._spans = spans
        self._gauge()

    async def run(self) -> None:
        """Raises Stop where the lease is lost."""
        try:
            while True:
                await self._message(await self._next())
                self._gauge()
        except LeaseLost as error:
            raise Stop(Exit.LEASE_LOST, str(error)) from None

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
                await self._event(Woken())
            case Submissions(entries):
                await self._submissions(entries)
            case Cancels(cancels):
                for cancel in cancels:
                    await self._event(Cancelled(cancel.request, cancel.choice, cancel.park, cancel.life))
            case Beats(beats, live):
                for beat in beats:
                    await self._event(Heard(beat, live))

    async def _submissions(self, entries: list[Entry]) -> None:
        requests = []
        for entry in entries:
            read = words.read(entry)
            if isinstance(read, words.Dead):
                await self._set_aside(read)
            else:
                requests.append((entry.id, read))
        if not requests:
            return
        # Looked at here and not on reading: a cancel that was handled before this left its tombstone before.
        tombstones = [self._keys.tombstone(request.id) for _, request in requests]
        found = await retrying("tombstones", lambda: self._connection.call("MGET", *tombstones))
        for (entry_id, request), tombstone in zip(requests, found, strict=True):
            self._metrics[names.PROMPT_TOKENS_ARRIVED].inc(prompt_tokens(request))
            await self._event(Arrived(request, entry_id, tombstone is not None))

    async def _event(self, event: Event) -> None:
        for action in self._policy.handle(event, clock.wall()):
            await self._act(action)

    async def _act(self, action: Action) -> None:
        match action:
            case Forward(waiting, replica):
                request = self._spans.forwarded(waiting, replica)
                entry = await self._script(HAND_OVER, self._keys.run(replica), waiting.entry, encode(request))
                if entry is None:
                    log.warning("request %s had gone on before", request.id)
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
            case Drop(entry_id):
                await self._discard(entry_id)

    async def _set_aside(self, dead: words.Dead) -> None:
        log.error("entry %s %s; set aside in %s", dead.entry.id, dead.reason, self._keys.dead)
        self._metrics[names.DEAD_LETTERS].inc()
        if dead.refusal is not None:
            # Said first: a crash between the two says it twice, and the second is for nobody.
            out, word = self._keys.out(dead.gateway), words.refused(dead.refusal, self._lease.epoch)
            await retrying("refusal", lambda: append(self._connection, out, word, OUT_MAXLEN))
        await self._script(SETTLE, self._keys.dead, dead.entry.id, dead.entry.payload, DEAD_MAXLEN)

    async def _settle(self, waiting: Waiting, word: bytes) -> None:
        request = waiting.request
        head, life = self._keys.stream(request.id), request.life
        out = self._keys.out(request.gateway)
        await self._script(SETTLE, out, waiting.entry, word, OUT_MAXLEN, life, head=head)

    async def _discard(self, entry: str, head: tuple[str, ...] = (), life: tuple[int, ...] = ()) -> None:
        keys = [self._lease.key, self._keys.submit, *head]
        args = [self._lease.epoch, GROUP, entry, *life]
        await retrying("discard", lambda: DISCARD(self._connection, keys, args))

    async def _script(
        self, script: Script, destination: str, entry: str, *args: object, head: str | None = None
    ) -> str | None:
        """Moves on from `submit`, once: repeated after a lost answer it finds the entry gone, and is None."""
        keys = [self._lease.key, self._keys.submit, destination, *([head] if head else [])]
        values = [self._lease.epoch, GROUP, entry, *args]
        answer = await retrying("hand-over", lambda: script(self._connection, keys, values))
        return None if answer is None else answer.decode()

    def _gauge(self) -> None:
        counts = self._policy.waiting()
        for level in LEVELS:
            self._metrics[names.QUEUE_REQUESTS].labels(level).set(counts[level])
