"""One life of a request at its gateway: items in, events out, until it is over, parked or cancelled."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import msgspec
from opentelemetry.trace import SpanKind

from pillion import clock, ids
from pillion.bus import UNREACHABLE
from pillion.contracts.entries import Refusal, Request, Tokens
from pillion.contracts.timeline import Delivery
from pillion.gateway.account import ABORTED, FAILED, FINISHED, PARKED, Account
from pillion.gateway.answers import Answer, Event
from pillion.gateway.heads import Heads, Once, Standing, StreamHead
from pillion.gateway.outbox import Outbox
from pillion.gateway.output import Gap
from pillion.gateway.protocol.errors import (
    BUS_GONE,
    CANCELLED,
    MOVED,
    ApiError,
    cancelled,
    moved,
    refused,
    too_long,
)
from pillion.gateway.streams import Inbox, Streams
from pillion.telemetry import names, tracing

log = logging.getLogger(__name__)

CATCH_UP_PATIENCE = 5.0  # seconds for the rest of a gap to appear in a journal that can be read
CATCH_UP_LOOK = 0.1  # seconds between two looks
CLIENT_GONE = "client_gone"
GATEWAY_ENDS = "gateway_ends"
_WHY_PARKED = {
    CLIENT_GONE: "the client is gone; it goes on where that comes back",
    GATEWAY_ENDS: "the gateway ends; it goes on where its client comes back",
    MOVED: "it goes on in another connection",
}


@dataclass(frozen=True, slots=True)
class Bus:
    """The gateway's three ways to Redis."""

    streams: Streams
    outbox: Outbox
    heads: Heads


class Call:
    """Owned by the handler that answers the client. Not for two tasks at once."""

    def __init__(
        self,
        request: Request,
        head: StreamHead,
        answer: Answer,
        account: Account,
        bus: Bus,
        once: Once | None = None,
    ) -> None:
        self.request = request
        self.head = head
        self.answer = answer
        self._account = account
        self._bus = bus
        self._once = once
        self._claim = ids.process_id()
        self._inbox: Inbox | None = None  # once something of it may run
        self._refusal: str | None = None  # its code: nothing runs that is ours
        self._broken_by = CLIENT_GONE  # what it means when its handler is cancelled

    @property
    def account(self) -> Account:
        return self._account

    @property
    def replica(self) -> str:
        """Whose tokens came last; "" before the first."""
        return self._inbox.replica if self._inbox is not None else ""

    # --- begin -------------------------------------------------------------------------------------

    async def submit(self) -> None:
        """Raises ApiError."""
        self._inbox = self._bus.streams.open(self.request.id)
        with self._sending() as sent:
            sent(await self._bus.outbox.submit(self.request, self.head, self._claim, self._once))
        self._account.submitted = clock.monotonic()

    async def submit_again(self) -> None:
        """After Redis may have lost it: what is still there is not added twice."""
        if self._inbox is not None and not self.answer.done and self._refusal is None:
            await self._bus.outbox.submit_again(self.request, self.head, self._claim, self._once)

    async def take_up(self, former: Standing) -> None:
        """Runs the next life, from what the answer has seen. Raises ApiError."""
        ended = tuple(choice.index for choice in self.answer.choices if choice.finish is not None)
        self._leave()
        self.request = msgspec.structs.replace(
            self.request,
            life=former.life + 1,
            ended=ended,
            resumed=True,
            fingerprint=self.head.fingerprint or "",
        )
        self._claim = ids.process_id()
        self._inbox = self._bus.streams.open(self.request.id, self.request.life)
        try:
            with self._sending() as sent:
                sent(await self._bus.outbox.take_up(self.request, former, self._claim))
        except ApiError as error:
            if error.code != BUS_GONE:  # in which case it may have been added all the same
                self._leave()
            raise

    @contextmanager
    def _sending(self) -> Iterator[Callable[[str], None]]:
        """The span of a submit; it is told the entry's id."""
        span = self._account.accounts.tracer.start_span(
            "send pillion:submit",
            tracing.context(self.request.traceparent),
            SpanKind.PRODUCER,
            {
                names.MESSAGING_SYSTEM: "redis",
                names.MESSAGING_OPERATION_NAME: "send",
                names.MESSAGING_OPERATION_TYPE: "send",
                names.MESSAGING_DESTINATION_NAME: "pillion:submit",
            },
        )
        try:
            yield lambda entry: span.set_attribute(names.MESSAGING_MESSAGE_ID, entry)
        finally:
            span.end()

    # --- what comes --------------------------------------------------------------------------------

    async def events(self, seconds: float, *, search: bool = True) -> list[Event] | None:
        """The next events of the answer, maybe none; None when nothing came for `seconds`.

        `search` looks for an unseen end when nothing came. Raises ApiError where the request was refused,
        failed, moved to another connection, or took too long.
        """
        if self.answer.failed is not None:
            raise self.answer.failed
        left = (self.request.deadline or float("inf")) - clock.wall()
        if left <= 0:
            raise too_long()
        assert self._inbox is not None, "nothing was submitted"
        taken = await self._inbox.take(min(seconds, left))
        if isinstance(taken, Refusal):
            self._refusal = None if taken.code == CANCELLED else taken.code or taken.type
            raise refused(taken)
        events: list[Event] = []
        if self._inbox.lost:
            self._inbox.lost = False
            return await self._catch_up(self._inbox, taken, events, seconds)
        if not taken:
            return await self._look() if search else None
        try:
            self._feed(taken, events)
        except Gap as gap:
            log.warning("request %s: %s; reading the journal", self.request.id, gap)
            return await self._catch_up(self._inbox, taken, events, seconds)
        return events

    def _feed(self, items: list[Tokens], events: list[Event]) -> None:
        """Adds what the items bring to `events`. Raises Gap with those before the gap added."""
        for item in items:
            choice = self.answer.choices[item.choice]
            known, ended = choice.known, choice.finish is not None
            events += self.answer.feed(item)
            self._account.tokens(item.choice, known, choice.known - known)
            if choice.stopped_here and not ended and item.finish is None:
                self._bus.outbox.cancel(
                    self.request.id, item.choice, "its text is whole", self.request.traceparent
                )

    async def _catch_up(
        self, inbox: Inbox, items: list[Tokens], events: list[Event], seconds: float
    ) -> list[Event] | None:
        """`events`, then what was missed, then what `items` bring. It is in the journal, since that is
        written first, or comes there again: when Redis was killed with its last words unwritten, their
        replica puts them back. What cannot be read for `seconds` is left to the next call, which finds
        `items` there too.
        """
        end, patience = clock.monotonic() + seconds, None
        while True:
            try:
                async with asyncio.timeout(max(end - clock.monotonic(), CATCH_UP_LOOK)):
                    missed = await self._bus.streams.missed(inbox)
                self._feed([*missed, *items], events)
                return events
            except Gap as gap:
                patience = patience or clock.monotonic() + CATCH_UP_PATIENCE
                if clock.monotonic() > patience:
                    raise _lost(gap) from None  # two histories are never joined
            except (TimeoutError, *UNREACHABLE):
                patience = None
                if clock.monotonic() >= end:
                    inbox.look_back()
                    return events or None
            await asyncio.sleep(CATCH_UP_LOOK)

    async def _look(self) -> list[Event] | None:
        """Nothing came for long. The request may have ended unseen, if its last items were trimmed away; or
        was parked, if this gateway was taken for dead; or went on elsewhere, and the word of it was lost.
        """
        try:
            standing = await self._bus.heads.find(self.request.id)
        except UNREACHABLE as error:
            log.warning("request %s: how it stands cannot be read: %s", self.request.id, error)
            return None
        if standing is None:
            return None
        if standing.life > self.request.life:
            self._refusal = MOVED
            raise moved()
        events: list[Event] = []
        self._feed(standing.items(), events)
        if standing.refused is not None and not self.answer.done:
            self._refusal = standing.refused.code or standing.refused.type
            raise refused(standing.refused)
        if standing.parked and not self.answer.done:
            if standing.cancelled:
                raise cancelled()
            log.warning("request %s was parked under its connection; it goes on", self.request.id)
            await self.take_up(standing)
        return events or None

    # --- end ---------------------------------------------------------------------------------------

    def stop(self) -> bool:
        """An explicit cancel: who reads the answer gets an error. False where nothing runs yet."""
        return self._tell(cancelled())

    def move(self) -> None:
        """The stream goes on in another connection of this gateway; this one ends."""
        self._tell(moved())

    def hand_on(self) -> None:
        """From now on it is the gateway that breaks the connection off."""
        self._broken_by = GATEWAY_ENDS

    def delivery(self) -> Delivery:
        """How its tokens came, in this connection."""
        return self._account.delivery()

    def broken(self) -> tuple[str, str]:
        """The outcome of a connection that breaks off now, and why."""
        return PARKED if self._inbox is not None and not self.answer.done else ABORTED, self._broken_by

    def _tell(self, error: ApiError) -> bool:
        if self._inbox is None:
            return False
        self._inbox.refuse(Refusal(self.request.id, error.status, error.message, error.type, code=error.code))
        return True

    def close(self, error: BaseException | None) -> None:
        """The connection is over, with its answer or with an error. What may still run of the request is
        parked where its client can come back, else cancelled; of what brought nothing nothing is left.
        """
        runs = self._inbox is not None and not self.answer.done and error is not None
        self._leave()
        request, outbox = self.request, self._bus.outbox
        if self._account.first is not None and not self._account.replay:
            outbox.tell(request.id, self._account.delivery())
        if not runs:
            return
        new = not request.life and not any(choice.known for choice in self.answer.choices)
        if isinstance(error, asyncio.CancelledError | ConnectionError):
            outbox.park(request.id, request.life, self._broken_by, request.traceparent)
        elif not isinstance(error, ApiError):
            outbox.cancel(request.id, None, "the gateway failed", request.traceparent)
        elif error.code == BUS_GONE and not new:
            outbox.park(request.id, request.life, error.message, request.traceparent)
        else:
            if self._refusal is None:  # else nothing runs
                outbox.cancel(request.id, None, error.message, request.traceparent)
            if new and self._refusal != MOVED:
                outbox.forget(request, self._claim, self._once)

    def _leave(self) -> None:
        if self._inbox is not None:
            self._bus.streams.close(self._inbox)
            self._inbox = None


def _lost(gap: Gap) -> ApiError:
    return ApiError(500, f"A part of the answer was lost: {gap}.", type="server_error", code="stream_gap")


@asynccontextmanager
async def running(call: Call, account: Account, begin: Callable[[], Awaitable[None]]) -> AsyncIterator[Call]:
    """Begins, and sees to the end in every case. The body of the `with` answers the client."""
    ended_by: BaseException | None = None
    try:
        await begin()
        yield call
    except ApiError as error:
        ended_by = error
        outcome = {CANCELLED: ABORTED, MOVED: PARKED}.get(error.code or "", FAILED)
        account.close(outcome, error.code or error.type, error.status, _WHY_PARKED.get(error.code or "", ""))
        raise
    except (asyncio.CancelledError, ConnectionError) as error:
        ended_by = error
        outcome, why = call.broken()
        account.close(outcome, why, 499, _WHY_PARKED[why] if outcome == PARKED else "")
        raise
    except BaseException as error:
        ended_by = error
        account.close(FAILED, type(error).__name__, 500)
        raise
    else:
        account.close(FINISHED, ",".join(call.answer.finish_reasons), 200)
    finally:
        call.close(ended_by)
