"""How an answer goes to its client over HTTP: whole, or as a stream."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

import msgspec
from aiohttp import web

from pillion.gateway import sse
from pillion.gateway.answers import Event
from pillion.gateway.call import Call
from pillion.gateway.model import Texter
from pillion.gateway.protocol.errors import ApiError

ACCEPT = 0.25  # seconds in which a refusal still gets an HTTP status; then the stream's headers go out
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

    # What is told of a long prompt takes its time, in which streams go on.
    made = body() if call.answer.spec.scored is None else await texter(body)
    return web.Response(body=made, content_type="application/json")


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
