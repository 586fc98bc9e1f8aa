"""What the gateway writes: submits, cancels, and that it lives."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from pillion import clock
from pillion.actors import Mailbox
from pillion.bus import UNREACHABLE, Connection, Durable, Keys, retrying
from pillion.bus.scripts import FORGET, SUBMIT, TAKE_UP, TELL
from pillion.contracts.entries import Cancel, Control, Refusal, Request, StepOutput, encode
from pillion.contracts.timeline import Delivery
from pillion.gateway.heads import Once, Standing, StreamHead
from pillion.gateway.protocol.errors import MOVED, ApiError, bus_gone, moved

log = logging.getLogger(__name__)

SUBMIT_PATIENCE = 5.0  # seconds that a submit waits for Redis
CANCELS_KEPT = 10_000  # entries of the cancel stream
CONTROLS_KEPT = 100  # entries of a control stream
CONTROL_KEPT = 3600  # seconds after the last of them
TOMBSTONE = 3600  # seconds, at least
PRESENCE = 10.0  # seconds after which a gateway that says nothing is gone
OUT_KEPT = 3600  # seconds that a gone gateway's stream is kept
BATCH = 64
WAITING = 1 << 14  # words that wait for Redis; then the oldest gives way
RECENT = 1024  # cancels, of the last RECENT_SECONDS, that are sent again when Redis has lost data
RECENT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _Forget:
    """The script's keys and arguments: a request may be large."""

    keys: list[str]
    args: list[str]


@dataclass(frozen=True, slots=True)
class _Tell:
    request: str
    delivery: Delivery


class Outbox:
    """An actor for cancels; submits go out in the caller's own task.

    What is to be said while Redis is away waits, up to a bound. The oldest word then gives way, since what it
    is about is the likeliest to be over: at worst a request runs to its own end, or to its deadline, unread.
    """

    def __init__(
        self,
        connection: Connection,
        keys: Keys,
        gateway: str,
        bound: int,
        retention: float = 0.0,
        durable: Durable | None = None,
    ) -> None:
        """`bound`: the most entries that may wait in the submit stream. `retention`: of records, seconds.
        `durable`, of the same connection: waits for the disk before a request counts as accepted.
        """
        self._durable = durable
        self._connection = connection
        self._keys = keys
        self._gateway = gateway
        self._bound = bound
        self._retention = retention
        self._tombstone = int(max(TOMBSTONE, retention))
        self._words: Mailbox[Cancel | _Forget | _Tell] = Mailbox(1, control_capacity=WAITING)
        self._dropped = 0  # words since Redis was there last
        self._sent: deque[tuple[float, Cancel]] = deque(maxlen=RECENT)
        self._alive = keys.lease(f"gateway:{gateway}")

    async def submit(self, request: Request, head: StreamHead, claim: str, once: Once | None = None) -> str:
        """Adds the request and its head, answers the entry's id. Raises ApiError: 429 if too many wait, 503
        without Redis, 409 if the client's key was used just before.

        A submit whose answer got lost is sent again; an id that is known is not run twice. `claim` names the
        connection that owns the request.
        """
        entry, other, room = await self._added(self._submission(request, head, claim, once, self._bound))
        if other:
            raise ApiError(
                409, "A request with this Idempotency-Key came at the same time; send it again to join it.",
                param="Idempotency-Key", code="idempotency_key_in_use", retry_after=1.0,
            )  # fmt: skip
        return _entry(entry, room)

    async def submit_again(
        self, request: Request, head: StreamHead, claim: str, once: Once | None = None
    ) -> None:
        """After a loss: adds what is not there any more, however many wait and however long it takes."""
        again = msgspec.structs.replace(request, resumed=True, fingerprint=head.fingerprint or "")
        for key in (once, None):  # a key that another request has by now stays with it
            submission = self._submission(again, head, claim, key, 1 << 62)
            _, other, _ = await retrying("submit again", submission)
            if not other:
                return

    def _submission(
        self, request: Request, head: StreamHead, claim: str, once: Once | None, bound: int
    ) -> Callable[[], Awaitable[Any]]:
        keys = [self._keys.submit, self._keys.stream(request.id)]
        if once is not None:
            keys.append(self._keys.once(request.tenant, once.name))
        args = [
            *(bound, encode(request), encode(head), self._gateway, claim, self._kept(request)),
            *(request.id, once.former if once else "", request.life),
        ]
        return lambda: SUBMIT(self._connection, keys, args)

    async def take_up(self, request: Request, former: Standing, claim: str) -> str:
        """Adds the next life of a parked request, which is then this gateway's; tells the former owner.

        Answers the entry's id. Raises ApiError: as `submit`, and 409 if another one took it.
        """
        own = (self._keys.stream(request.id), self._keys.out(former.owner), self._keys.parking(request.id))
        keys = [self._keys.submit, *own]
        error = moved()
        word = Refusal(request.id, error.status, error.message, code=MOVED, life=former.life)
        # Within one gateway its connection is told directly.
        told = b"" if former.owner == self._gateway else encode(StepOutput("", 0, 0, refusals=(word,)))
        args = [
            *(self._bound, encode(request), self._gateway, claim, self._kept(request)),
            *(former.life, told),
        ]
        entry, mine, room = await self._added(lambda: TAKE_UP(self._connection, keys, args))
        if not mine:
            raise error
        return _entry(entry, room)

    async def control(self, replica: str, word: Control) -> str:
        """Tells a replica what an administrator wants; answers the entry's id. Raises ApiError (503)."""
        key = self._keys.control(replica)
        add = ("XADD", key, "MAXLEN", "~", CONTROLS_KEPT, "*", "e", encode(word))
        entry, _ = await self._added(lambda: self._connection.pipeline(add, ("EXPIRE", key, CONTROL_KEPT)))
        return str(entry.decode())

    def cancel(self, request: str, choice: int | None, reason: str, traceparent: str = "") -> None:
        """Ends a request, or one choice of it, as soon as Redis can be told. Does not wait."""
        self._put(Cancel(request, choice, reason, traceparent))

    def park(self, request: str, life: int, reason: str, traceparent: str = "") -> None:
        """Ends a life of a request, such that another can follow, as soon as Redis can be told."""
        self._put(Cancel(request, None, reason, traceparent, park=True, life=life))

    def cancel_again(self) -> None:
        """After a loss: what was sent lately may not have been read."""
        after = clock.monotonic() - RECENT_SECONDS
        words, self._sent = [word for at, word in self._sent if at > after], deque(maxlen=RECENT)
        for word in words:
            self._put(word)

    def forget(self, request: Request, claim: str, once: Once | None) -> None:
        """Takes back what names a request that brought nothing, as soon as Redis can be told."""
        keys = [self._keys.stream(request.id)]
        if once is not None:
            keys.append(self._keys.once(request.tenant, once.name))
        self._put(_Forget(keys, [claim, request.id]))

    def tell(self, request: str, delivery: Delivery) -> None:
        """Keeps with a request's head how its tokens came, as soon as Redis can be told."""
        self._put(_Tell(request, delivery))

    def _put(self, word: Cancel | _Forget | _Tell) -> None:
        if len(self._words) >= WAITING:
            self._words.take()
            self._dropped += 1
        self._words.put_control(word)

    async def run(self) -> None:
        """An actor. Ends only by cancellation."""
        while True:
            await self._send([await self._words.get()])

    async def flush(self) -> None:
        """Sends what waits. For the end of the process, after `run` has ended."""
        while (word := self._words.take()) is not None:
            await self._send([word])

    async def _send(self, words: list[Cancel | _Forget | _Tell]) -> None:
        while len(words) < BATCH and (more := self._words.take()) is not None:
            words.append(more)
        commands: list[tuple[object, ...]] = []
        for word in words:
            if not isinstance(word, Cancel):
                continue
            # The tombstone first: whoever reads the request's entry after this cancel finds it.
            if word.park:
                commands.append(("SET", self._keys.parking(word.request), word.life, "EX", self._tombstone))
            elif word.choice is None:
                tomb = self._keys.tombstone(word.request)
                commands.append(("SET", tomb, word.reason, "EX", self._tombstone))
            commands.append(("XADD", self._keys.cancel, "MAXLEN", "~", CANCELS_KEPT, "*", "e", encode(word)))
            self._sent.append((clock.monotonic(), word))
        if commands:
            await retrying("cancel", lambda: self._connection.pipeline(*commands))
        for word in words:
            if isinstance(word, _Forget):
                await retrying("forget", partial(FORGET, self._connection, word.keys, word.args))
            elif isinstance(word, _Tell):
                keys, args = [self._keys.stream(word.request)], [encode(word.delivery)]
                await retrying("tell", partial(TELL, self._connection, keys, args))
        if self._dropped:
            log.warning(
                "%d cancels found no room while Redis was away: those requests end by themselves",
                self._dropped,
            )
            self._dropped = 0

    async def _added(self, attempt: Callable[[], Awaitable[Any]]) -> Sequence[Any]:
        try:
            answer: Sequence[Any] = await retrying("submit", attempt, give_up_after=SUBMIT_PATIENCE)
            if self._durable is not None:
                await self._durable.synced()
        except UNREACHABLE:
            raise bus_gone() from None
        return answer

    def _kept(self, request: Request) -> int:
        """Seconds that a head is kept: as long as the request may run, and then as its record."""
        left = 0.0 if request.deadline is None else max(0.0, request.deadline - clock.wall())
        return int(left + self._retention) + 1

    async def here(self) -> None:
        """Says that this gateway lives. Raises RedisError."""
        await self._connection.pipeline(
            ("SET", self._alive, 1, "PX", int(PRESENCE * 1000)),
            ("EXPIRE", self._keys.out(self._gateway), OUT_KEPT),
        )

    async def leave(self) -> None:
        """Takes back all that names this gateway. Raises RedisError."""
        await self._connection.call("DEL", self._alive, self._keys.out(self._gateway))

    async def presence(self) -> None:
        """An actor: says so without end."""
        while True:
            await retrying("presence", self.here)
            await asyncio.sleep(PRESENCE / 4)


def _entry(entry: bytes, room: int) -> str:
    if not room:
        raise ApiError(
            429, "Too many requests wait already. Try again later.",
            type="rate_limit_error", code="queue_full", retry_after=1.0,
        )  # fmt: skip
    return entry.decode()
