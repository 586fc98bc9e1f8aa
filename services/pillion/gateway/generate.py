"""Answers the two forms of generation over HTTP: whole, or as a stream."""

from contextlib import AbstractAsyncContextManager

import msgspec
from aiohttp import web
from opentelemetry.trace import Span

from pillion import clock, ids
from pillion.contracts.entries import Request
from pillion.gateway import sse
from pillion.gateway.answers import Answer, Event, Head
from pillion.gateway.call import Call, running
from pillion.gateway.model import Model
from pillion.gateway.protocol.entry import Envelope, Limits, entry
from pillion.gateway.protocol.errors import ApiError
from pillion.gateway.protocol.request import Generation, Messages
from pillion.gateway.state import State
from pillion.telemetry import names, tracing

ACCEPT = 0.25  # seconds in which a refusal still gets an HTTP status; then the stream's headers go out
KEEPALIVE = 10.0  # seconds without an event, after which a comment is sent


async def generate(
    state: State,
    http: web.Request,
    identity: str,
    tenant: str,
    label: str | None,
    asked: Generation,
    span: Span | None,
) -> web.StreamResponse:
    """Runs a validated request and answers it. Raises ApiError as long as nothing was sent."""
    model = state.served(asked.model)
    facts = state.ready(model)
    if isinstance(asked.prompt, Messages) and asked.prompt.ignored_keys:
        state.accounts.metrics[names.IGNORED_KEYS].inc(asked.prompt.ignored_keys)
    arrival = clock.wall()
    prompts = await state.texter(lambda: model.encode(asked.prompt))
    inner = state.accounts.span(asked.output.form, model.name, span)
    try:
        request = entry(
            asked,
            prompts,
            Limits(
                facts.max_model_len,
                facts.vocab_size or model.tokenizer.vocab_size,
                state.config.gateway.max_choices,
            ),
            model.defaults,
            Envelope(
                id=identity,
                gateway=state.id,
                model=model.name,
                arrival=arrival,
                deadline=arrival + state.config.gateway.request_timeout,
                seed=ids.seed(),
                tenant=tenant,
                traceparent=tracing.traceparent(inner),
            ),
        )
        answer = await _answer(state, model, asked, request, facts.fingerprint)
    except BaseException:
        inner.end()
        raise
    with state.named(asked.label or label, tenant):
        account = state.accounts.open(request, answer, asked.label or label, inner)
        call = Call(request, answer, account, state.streams, state.outbox)
        with state.live(call):
            if asked.output.stream:
                return await _stream(http, call, running(call, account))
            return await _whole(call, running(call, account))


async def _answer(
    state: State, model: Model, asked: Generation, request: Request, fingerprint: str
) -> Answer:
    echoed = await state.texter(lambda: model.texts(asked.prompt)) if asked.output.echo else ()
    head = Head(request.id, int(request.arrival), model.name, fingerprint or None, request.prompts, echoed)
    return Answer(asked.output, head, model.tokenizer)


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
            waiting = await call.events(ACCEPT)
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
