"""Server-sent events, as in the HTML standard, section 9.2."""

from typing import Any

import msgspec

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",  # proxies must pass each event on at once
}
DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": keepalive\n\n"

_encode = msgspec.json.Encoder().encode


def event(data: dict[str, Any]) -> bytes:
    """One event. JSON has no line breaks, so one `data` line holds it."""
    return b"data: " + _encode(data) + b"\n\n"
