"""How an answer goes to its client over HTTP: whole, or as a stream."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

import msgspec
from aiohttp import web

from pillion.gateway import sse
from pillion.gateway.answers import Answer, Event
from pillion.gateway.call import Call
from pillion.gateway.model import Texter
from pillion.gateway.protocol.errors import ApiError

ACCEPT = 0.25  # seconds in which a refusal still gets an HTTP status; then the stream's headers go out
TOLD_AT_ONCE = 1 << 12  # tokens and alternatives; of more an answer is made beside the event loop
KEEPALIVE = 10.0  # seconds without an event, after which a comment is sent

Run = AbstractAsyncContextManager[Call]


async def reply(
    http: web.Request, call: Call, run: Run, texter: Texter, known: Sequence[Event] = ()
) -> web.StreamResponse:
    """Answers in the form that the request asked for. `run` begins the call and sees to its end; `known`
    events come first. Raises ApiError as long as nothing was sent.
    """
    return await (_stream(http, call, run, known) if call.answer.spec.stream else _whole(call, run, texter))


async def _whole(call: Call, run: Run, texter: Texter) -> web.Response:
    async with run:
        while not call.answer.done:
            await call.events(KEEPALIVE)

    def body() -> bytes:
        return msgspec.json.encode(call.answer.whole())

    # What is told of a long prompt, or of many tokens, takes its time, in which streams go on.
    made = await texter(body) if _long(call.answer) else body()
    return web.Response(body=made, content_type="application/json")


def _long(answer: Answer) -> bool:
    told = sum(choice.known for choice in answer.choices) * (1 + (answer.spec.logprobs or 0))
    return answer.spec.scored is not None or told > TOLD_AT_ONCE


async def _stream(http: web.Request, call: Call, run: Run, known: Sequence[Event]) -> web.StreamResponse:
    response = web.StreamResponse(headers=sse.HEADERS)
    try:
        async with run:
            events: Sequence[Event] | None = known
            if not known and not call.answer.done:
                # A refusal mostly comes at once: it is told by status, before the headers go out.
                events = await call.events(ACCEPT, search=False) or ()
            await response.prepare(http)
            await _send(response, events)
            while not call.answer.done:
                await _send(response, await call.events(KEEPALIVE))
            await response.write(b"".join(map(sse.event, call.answer.closing())) + sse.DONE)
    except ApiError as error:
        if not response.prepared:
            raise
        await response.write(sse.failure(error) + sse.DONE)
    await response.write_eof()
    return response


async def _send(response: web.StreamResponse, events: Sequence[Event] | None) -> None:
    if events is None:
        await response.write(sse.KEEPALIVE)
    elif events:
        await response.write(b"".join(map(sse.event, events)))
