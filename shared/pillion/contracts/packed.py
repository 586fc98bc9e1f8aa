"""Log-probabilities of many tokens as bytes: a prompt's are thousands, and services only pass them on.

A token with `k` alternatives is k + 1 pairs of int32 and float32, little-endian: its rank and its own
log-probability, then id and log-probability of each, likeliest first. Where the vocabulary has fewer than k,
id -1 stands for the rest. What follows one another may be joined.
"""

import struct
from collections.abc import Iterable

from .entries import TokenLogprob

_NOBODY = (-1, 0.0)


def pack(logprobs: Iterable[TokenLogprob], k: int) -> bytes:
    form = _form(k)
    packed = bytearray()
    for each in logprobs:
        pairs = ((each.rank, each.logprob), *each.top, *(_NOBODY,) * (k - len(each.top)))
        packed += form.pack(*(number for pair in pairs for number in pair))
    return bytes(packed)


def size(k: int) -> int:
    """Bytes of a token."""
    return _form(k).size


def unpack(packed: bytes, k: int) -> list[TokenLogprob]:
    """Raises ValueError for what is no whole number of tokens."""
    form = _form(k)
    if len(packed) % form.size:
        raise ValueError(f"{len(packed)} bytes are no tokens of {form.size} each")
    return [
        TokenLogprob(
            row[1], row[0], tuple(pair for pair in zip(row[2::2], row[3::2], strict=True) if pair[0] >= 0)
        )
        for row in form.iter_unpack(packed)
    ]


def _form(k: int) -> struct.Struct:
    return struct.Struct("<" + "if" * (k + 1))
