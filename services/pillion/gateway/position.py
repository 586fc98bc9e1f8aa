"""Event ids: how many events of each choice a client has, as it says in `Last-Event-ID`. Pure.

One number a choice, in their order: `12.7.9`; equal ones in a row as `12x3`. One number more where the event
behind all choices, the usage, was the last. Behind them a checksum over the request's id and the numbers:
only what was sent is taken, without asking how far the stream is. That would not do, since a stream whose
tokens are computed again after a loss may for a while be behind what its client has.
"""

import re
import zlib
from collections.abc import Sequence
from itertools import groupby

from pillion.gateway.protocol.errors import ApiError

LONGEST = 4096  # characters of an id that is looked at
_PART = re.compile(r"([0-9]{1,10})(?:x([0-9]{1,5}))?")


def encode(request: str, counts: Sequence[int]) -> str:
    runs = ((count, len(list(run))) for count, run in groupby(counts))
    return sealed(request, ".".join(f"{count}x{size}" if size > 1 else str(count) for count, size in runs))


def sealed(request: str, numbers: str) -> str:
    """With the checksum."""
    return f"{numbers}-{zlib.crc32(f'{request} {numbers}'.encode()):08x}"


def decode(request: str, text: str, choices: int) -> tuple[int, ...]:
    """`choices` numbers and one for the event behind them. Raises ApiError (400)."""
    counts: list[int] = []
    numbers = text.rpartition("-")[0] if len(text) <= LONGEST else ""
    for part in numbers.split(".") if text == sealed(request, numbers) else ("",):
        match = _PART.fullmatch(part)
        size = int(match[2] or 1) if match else 0
        if match is None or not 0 < size <= choices + 1 - len(counts):
            break
        counts += [int(match[1])] * size
    else:
        if len(counts) >= choices:
            return (*counts, 0)[: choices + 1]
    raise ApiError(
        400,
        "Last-Event-ID is none of this stream's; send the id of its last event, or leave it out.",
        param="Last-Event-ID",
        code="invalid_event_id",
    )
