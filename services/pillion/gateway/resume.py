"""Goes on with a request whose client or gateway went away: at any gateway, from any event."""

import asyncio
import re
from collections.abc import Awaitable
from dataclasses import replace
from typing import TypeVar

import msgspec
from aiohttp import web

from pillion import clock
from pillion.bus import UNREACHABLE
from pillion.gateway import position
from pillion.gateway.account import Account
from pillion.gateway.answers import Answer
from pillion.gateway.call import Call, running
from pillion.gateway.heads import Once, Standing
from pillion.gateway.protocol.errors import (
    ApiError,
    bad,
    bus_gone,
    cancelled,
    moved,
    refused,
    too_long,
    unavailable,
)
from pillion.gateway.reply import reply
from pillion.gateway.state import Sender, State
from pillion.telemetry import tracing

PATIENCE = 5.0  # seconds for another connection's request to be parked
LOOK = 0.02  # seconds between two looks
_KEY = re.compile(r"[\x20-\x7e]{1,255}")

T = TypeVar("T")


async def find(state: State, identity: str, tenant: str | None) -> Standing:
    """`tenant` None: whosesoever it is. Raises ApiError: 404 for what is unknown, forgotten, or another
    tenant's; 503 without Redis.
    """
    standing = await _read(state.bus.heads.find(identity))
    if standing is None or tenant not in (None, standing.head.request.tenant):
        raise ApiError(404, "There is no stream with this id, or it is no longer kept.", code="not_found")
    return standing


async def sent_before(state: State, tenant: str, once: Once) -> tuple[Standing | None, Once]:
    """The request that the tenant sent with this Idempotency-Key, and the key for a new one if there is none.

    Raises ApiError: 409 if it was sent with another body.
    """
    identity = await _read(state.bus.heads.named(tenant, once))
    if identity is None:
        return None, once
    standing = await _read(state.bus.heads.find(identity))
    if standing is None:
        return None, replace(once, former=identity)
    if standing.head.body != once.body:
        raise ApiError(
            409, "This Idempotency-Key was sent with another request before; use a new key for each request.",
            param="Idempotency-Key", code="idempotency_key_reused",
        )  # fmt: skip
    return standing, once


def idempotency_key(http: web.Request) -> str | None:
    """Raises ApiError (400)."""
    key = http.headers.get("Idempotency-Key")
    if key is not None and not _KEY.fullmatch(key):
        raise bad(
            "Idempotency-Key",
            "Idempotency-Key must have 1 to 255 printable ASCII characters.",
            "invalid_value",
        )
    return key


async def resume(state: State, http: web.Request, sender: Sender, standing: Standing) -> web.StreamResponse:
    """Answers a request that was sent before, from the event on that the client had last.

    Raises ApiError as long as nothing was sent.
    """
    start, head = clock.monotonic(), standing.head
    model = state.served(head.request.model)
    answer = head.answer(model.tokenizer)
    delivered = (0,) * (len(answer.choices) + 1)
    if head.output.stream and (last := http.headers.get("Last-Event-ID")):
        delivered = position.decode(head.request.id, last, len(answer.choices))
    stood = "finished" if standing.finished else "parked" if standing.parked else "running"
    with state.accounts.span(head.output.form, model.name, sender.span, head.request.traceparent) as span:
        standing = await _left_alone(state, standing)
        known = await state.texter(lambda: answer.replay(standing.items(), delivered))
        _end(answer, standing)
        request = msgspec.structs.replace(
            head.request, gateway=state.id, life=standing.life, traceparent=tracing.traceparent(span)
        )
        ended = answer.done or answer.failed is not None
        account: Account = state.accounts.open(
            request, answer, head.label, span, start, resumed=stood, replay=ended
        )
        call = Call(request, head, answer, account, state.bus)
        with state.live(call) as former:

            async def begin() -> None:
                if ended:
                    return
                await call.take_up(standing)
                if former is not None:
                    former.move()

            return await reply(http, call, running(call, account, begin), state.texter, known)


async def _left_alone(state: State, standing: Standing) -> Standing:
    """The request once it has ended or is parked, which is asked for while another connection has it.

    Raises ApiError: 503 if that does not come about, or this gateway goes down; 409 if one that came at the
    same time took it. Whether a replica is ready does not matter: the request was accepted, and waits.
    """
    patience = clock.monotonic() + PATIENCE
    request, life, asked = standing.head.request, standing.life, False
    while not standing.finished:
        if state.draining:
            verdict = state.verdict()
            raise unavailable(verdict.reason, verdict.message, 1.0)
        if standing.parked:
            break
        if standing.life != life:
            raise moved()
        if not asked:
            state.bus.outbox.park(request.id, life, "the client came back", request.traceparent)
            asked = True
        if clock.monotonic() > patience:
            raise unavailable("stream_busy", "The stream cannot be taken over yet. Try again.", 1.0)
        await asyncio.sleep(LOOK)
        standing = await find(state, request.id, request.tenant)
    return standing


def _end(answer: Answer, standing: Standing) -> None:
    """Refusals for good, deadlines and cancels are final: what was brought until then is all there is."""
    deadline = standing.head.request.deadline
    if answer.done:
        return
    if standing.refused is not None:
        answer.failed = answer.failed or refused(standing.refused)
    elif standing.finished:
        return
    elif standing.cancelled:
        answer.failed = answer.failed or cancelled()
    elif deadline is not None and clock.wall() >= deadline:
        answer.failed = answer.failed or too_long()


async def _read(reading: Awaitable[T]) -> T:
    try:
        return await reading
    except UNREACHABLE:
        raise bus_gone() from None
