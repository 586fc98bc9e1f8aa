"""Answers the two forms of generation over HTTP: whole, or as a stream."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import msgspec
from aiohttp import web
from opentelemetry.trace import Span

from pillion import clock, ids
from pillion.gateway import sse
from pillion.gateway.answers import Answer, Event, Head
from pillion.gateway.call import Call, running
from pillion.gateway.protocol.entry import Envelope, Limits, entry
from pillion.gateway.protocol.errors import ApiError
from pillion.gateway.protocol.request import Generation, Messages
from pillion.gateway.state import State
from pillion.telemetry import names, tracing

ACCEPT = 0.25  # seconds in which a refusal still gets an HTTP status; then the stream's headers go out
KEEPALIVE = 10.0  # seconds without an event, after which a comment is sent


@dataclass(frozen=True, slots=True)
class Sender:
    """Whose request it is, and under which names it runs."""

    identity: str  # the system's id
    tenant: str
    label: str | None  # the client's own id
    span: Span  # the server's


async def generate(state: State, http: web.Request, sender: Sender, asked: Generation) -> web.StreamResponse:
    """Runs a validated request and answers it. Raises ApiError as long as nothing was sent."""
    arrival, start = clock.wall(), clock.monotonic()
    model = state.served(asked.model)
    state.ready(model)
    if isinstance(asked.prompt, Messages) and asked.prompt.ignored_keys:
        state.accounts.metrics[names.IGNORED_KEYS].inc(asked.prompt.ignored_keys)
    prompts = await state.texter(lambda: model.encode(asked.prompt))
    echoed = await state.texter(lambda: model.texts(asked.prompt)) if asked.output.echo else ()
    # Asked again: nothing waits from here to where the request counts as live, so no drain overlooks it.
    facts = state.ready(model)
    limits = Limits(facts.max_model_len, facts.vocab_size, state.config.gateway.max_choices)
    label = asked.label or sender.label
    with state.named(label, sender.tenant), state.accounts.span(asked, model.name, sender.span) as span:
        envelope = Envelope(
            id=sender.identity,
            gateway=state.id,
            model=model.name,
            arrival=arrival,
            deadline=arrival + state.config.gateway.request_timeout,
            seed=ids.seed(),
            tenant=sender.tenant,
            traceparent=tracing.traceparent(span),
        )
        request = entry(asked, prompts, limits, model.defaults, envelope)
        head = Head(request.id, int(arrival), model.name, facts.fingerprint or None, request.prompts, echoed)
        answer = Answer(asked.output, head, model.tokenizer)
        account = state.accounts.open(request, answer, label, span, start)
        call = Call(request, answer, account, state.streams, state.outbox)
        with state.live(call):
            if asked.output.stream:
                return await _stream(http, call, running(call, account))
            return await _whole(call, running(call, account))


async def _whole(call: Call, run: AbstractAsyncContextManager[Call]) -> web.Response:
    async with run:
        while not call.answer.done:
            await call.events(KEEPALIVE)
    return web.Response(body=msgspec.json.encode(call.answer.whole()), content_type="application/json")


async def _stream(
    http: web.Request, call: Call, run: AbstractAsyncContextManager[Call]
) -> web.StreamResponse:
    response = web.StreamResponse(headers=sse.HEADERS)
    try:
        async with run:
            # A refusal mostly comes at once: it is told by status, before the headers go out.
            waiting = await call.events(ACCEPT, search=False)
            await response.prepare(http)
            await _send(response, waiting or [])
            while not call.answer.done:
                await _send(response, await call.events(KEEPALIVE))
            await response.write(b"".join(map(sse.event, call.answer.closing())) + sse.DONE)
    except ApiError as error:
        if not response.prepared:
            raise
        await response.write(sse.event(error.body()) + sse.DONE)
    await response.write_eof()
    return response


async def _send(response: web.StreamResponse, events: list[Event] | None) -> None:
    if events is None:
        await response.write(sse.KEEPALIVE)
    elif events:
        await response.write(b"".join(map(sse.event, events)))
