"""One request from submit to end: items come in, events go out, and at last it is over or cancelled."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from opentelemetry.trace import SpanKind

from pillion import clock
from pillion.bus import UNREACHABLE
from pillion.contracts.entries import Refusal, Request, Tokens
from pillion.gateway.account import ABORTED, FAILED, FINISHED, Account
from pillion.gateway.answers import Answer, Event
from pillion.gateway.outbox import Outbox
from pillion.gateway.output import Gap
from pillion.gateway.protocol.errors import ApiError, unavailable
from pillion.gateway.streams import Inbox, Streams
from pillion.telemetry import names, tracing

log = logging.getLogger(__name__)

CATCH_UP_PATIENCE = 5.0  # seconds for the rest of a gap to appear in the journal


class Call:
    """Owned by the handler that answers the client. Not for two tasks at once."""

    def __init__(
        self, request: Request, answer: Answer, account: Account, streams: Streams, outbox: Outbox
    ) -> None:
        self.request = request
        self.answer = answer
        self._account = account
        self._streams = streams
        self._outbox = outbox
        self._inbox: Inbox = streams.open(request.id)
        self._cancelled: str | None = None

    @property
    def heard(self) -> bool:
        """Whether anything came: it will then not be submitted again."""
        return any(choice.known for choice in self.answer.choices) or self._inbox.replica != ""

    async def submit(self) -> None:
        """Raises ApiError."""
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
            span.set_attribute(names.MESSAGING_MESSAGE_ID, await self._outbox.submit(self.request))
        finally:
            span.end()

    def stop(self, reason: str) -> None:
        """An explicit cancel: the client that reads the answer gets an error."""
        self._cancelled = reason
        self._inbox.refuse(
            Refusal(self.request.id, 499, "The request was cancelled.", "server_error", code="cancelled")
        )

    async def events(self, seconds: float, *, search: bool = True) -> list[Event] | None:
        """The next events of the answer, maybe none; None when nothing came for `seconds`.

        `search` looks for an unseen end when nothing came. Raises ApiError where the request was refused,
        failed, or took too long.
        """
        left = (self.request.deadline or float("inf")) - clock.wall()
        if left <= 0:
            raise ApiError(
                504, "The request took longer than the server allows.",
                type="server_error", code="request_timeout",
            )  # fmt: skip
        taken = await self._inbox.take(min(seconds, left))
        if isinstance(taken, Refusal):
            raise ApiError(
                taken.status, taken.message, type=taken.type, param=taken.param,
                code=taken.code, retry_after=taken.retry_after,
            )  # fmt: skip
        events: list[Event] = []
        if self._inbox.lost:
            self._inbox.lost = False
            await self._catch_up(events)
        elif not taken:
            return await self._lost_end() if search else None
        try:
            self._feed(taken, events)
        except Gap as gap:
            await self._bridge(gap, taken, events)
        return events

    def close(self) -> None:
        """The request is over for the gateway. What still runs of it is cancelled."""
        self._streams.close(self.request.id)
        if not self.answer.done:
            reason = self._cancelled or "the client is gone"
            self._outbox.cancel(self.request.id, None, reason, self.request.traceparent)

    def _feed(self, items: list[Tokens], events: list[Event]) -> None:
        """Adds what the items bring to `events`. Raises Gap with those before the gap added."""
        for item in items:
            choice = self.answer.choices[item.choice]
            known, ended = choice.known, choice.finish is not None
            events += self.answer.feed(item)
            self._account.tokens(item, choice.known - known)
            if choice.stopped_here and not ended:
                self._outbox.cancel(
                    self.request.id, item.choice, "a stop string was found", self.request.traceparent
                )

    async def _bridge(self, gap: Gap, items: list[Tokens], events: list[Event]) -> None:
        """Items are missing: they are in the journal, since that is written first."""
        log.warning("request %s: %s; reading the journal", self.request.id, gap)
        await self._catch_up(events)
        try:
            self._feed(items, events)
        except Gap as still:
            # Two histories are never joined.
            raise _lost(still) from None

    async def _catch_up(self, events: list[Event]) -> None:
        try:
            async with asyncio.timeout(CATCH_UP_PATIENCE):
                missed = await self._streams.missed(self._inbox)
        except (TimeoutError, *UNREACHABLE):
            raise unavailable("bus_unavailable", "The message bus cannot be reached.", 2.0) from None
        try:
            self._feed(missed, events)
        except Gap as gap:
            raise _lost(gap) from None

    async def _lost_end(self) -> list[Event] | None:
        """Nothing came for long: the request may have ended unseen, if its last items were trimmed away."""
        try:
            items = await self._streams.missed(self._inbox, finished=True)
        except UNREACHABLE as error:
            log.warning("request %s: its record cannot be read: %s", self.request.id, error)
            return None
        events: list[Event] = []
        self._feed(items, events)
        return events if items else None


def _lost(gap: Gap) -> ApiError:
    return ApiError(500, f"A part of the answer was lost: {gap}.", type="server_error", code="stream_gap")


@asynccontextmanager
async def running(call: Call, account: Account) -> AsyncIterator[Call]:
    """Submits the request, and sees to its end in every case. The body of the `with` answers the client."""
    try:
        await call.submit()
        yield call
    except ApiError as error:
        outcome = ABORTED if error.code == "cancelled" else FAILED
        account.close(outcome, error.code or error.type, error.status)
        raise
    except (asyncio.CancelledError, ConnectionError):
        account.close(ABORTED, "the client is gone", 499)
        raise
    except BaseException as error:
        account.close(FAILED, type(error).__name__, 500)
        raise
    else:
        account.close(FINISHED, ",".join(call.answer.finish_reasons), 200)
    finally:
        call.close()
