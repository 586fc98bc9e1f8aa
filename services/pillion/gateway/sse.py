"""Server-sent events, as in the HTML standard, section 9.2."""

import msgspec

from pillion.gateway.answers import Event
from pillion.gateway.protocol.errors import ApiError

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",  # proxies must pass each event on at once
}
DONE = b"data: [DONE]\n\n"
# No empty line behind it: that would end an event without data, and there are clients that read even those.
KEEPALIVE = b": keepalive\n"

_encode = msgspec.json.Encoder().encode


def event(event: Event) -> bytes:
    """One event. JSON has no line breaks, so one `data` line holds it."""
    return b"id: %b\ndata: %b\n\n" % (event.id.encode(), _encode(event.data))


def failure(error: ApiError) -> bytes:
    """What ends a stream before its time. It has no id: who comes back does so to the event before it."""
    return b"data: %b\n\n" % _encode(error.body())
