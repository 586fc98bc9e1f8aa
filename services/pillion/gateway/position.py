"""Event ids: how many events of each choice a client has, as it says in `Last-Event-ID`. Pure.

One number a choice, in their order: `12.7.9`; equal ones in a row as `12x3`. One number more where the event
behind all choices, the usage, was the last.
"""

import re
from collections.abc import Sequence
from itertools import groupby

from pillion.gateway.protocol.errors import ApiError

LONGEST = 4096  # characters of an id that is looked at
_PART = re.compile(r"([0-9]{1,10})(?:x([0-9]{1,5}))?")


def encode(counts: Sequence[int]) -> str:
    runs = ((count, len(list(run))) for count, run in groupby(counts))
    return ".".join(f"{count}x{size}" if size > 1 else str(count) for count, size in runs)


def decode(text: str, choices: int) -> tuple[int, ...]:
    """`choices` numbers and one for the event behind them. Raises ApiError (400)."""
    counts: list[int] = []
    for part in text.split(".") if len(text) <= LONGEST else ("",):
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
