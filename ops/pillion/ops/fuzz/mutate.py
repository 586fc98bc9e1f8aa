"""Mutations of valid inputs: of their bytes, and of their values. Pure, given the random numbers."""

import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

_SIZES = ("<B", "<H", "<I", "<Q", ">H", ">I", ">Q")
_NUMBERS = (
    0,
    1,
    2,
    7,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    1 << 20,
    1 << 31,
    (1 << 32) - 1,
    (1 << 63) - 1,
    1 << 63,
)
_TEXTS = (
    "",
    "\0",
    "x" * 5000,
    "../../etc/passwd",
    "{{ 7 * 7 }}",
    "\u202e",
    "🙂" * 40,
    "null",
    "-1",
    "%s%n",
    "NaN",
)
_LEAVES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3, 1 << 16, 1 << 31, -(1 << 31), 1 << 32, (1 << 63) - 1, -(1 << 63),
    0.0, -0.0, 1e-9, 0.5, 1e308, -1e308, float("nan"), float("inf"), float("-inf"), b"\xff\x00",
    [], {}, [[]], *_TEXTS,
)  # fmt: skip


def flipped(rng: random.Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """`data` with one to eight changes of its bytes; parts may come from `others`."""
    result = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        rng.choice(_BYTE_CHANGES)(rng, result, others)
    return bytes(result)


def _bit(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _byte(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _number(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    code = rng.choice(_SIZES)
    size = struct.calcsize(code)
    at = rng.randrange(len(data) + 1)
    data[at : at + size] = struct.pack(code, rng.choice(_NUMBERS) & ((1 << 8 * size) - 1))


def _insert(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.randbytes(rng.choice((1, 1, 4, 64)))


def _delete(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    del data[at : at + rng.choice((1, 1, 4, 64))]


def _double(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = data[at : at + rng.choice((1, 8, 200))]


def _cut(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _splice(rng: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    other = rng.choice(others) if others else rng.randbytes(16)
    start = rng.randrange(len(other) + 1)
    at = rng.randrange(len(data) + 1)
    data[at:] = other[start:]


_BYTE_CHANGES: tuple[Callable[[random.Random, bytearray, Sequence[bytes]], None], ...] = (
    _bit, _bit, _byte, _byte, _number, _number, _insert, _delete, _double, _cut, _splice,
)  # fmt: skip


def bent(rng: random.Random, value: Any) -> Any:
    """A copy of nested lists, dicts and leaves with one to three values changed."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        value = _bend(rng, value)
    return value


def _bend(rng: random.Random, value: Any) -> Any:
    if rng.random() < 0.15:
        return _leaf(rng, value)
    match value:
        case dict() if value:
            key = rng.choice(list(value))
            copy = dict(value)
            if rng.random() < 0.12:
                del copy[key]
            elif rng.random() < 0.08:
                copy[rng.choice(_TEXTS)] = copy.pop(key)
            else:
                copy[key] = _bend(rng, copy[key])
            return copy
        case list() | tuple() if value:
            items = list(value)
            at = rng.randrange(len(items))
            if rng.random() < 0.1:
                del items[at]
            elif rng.random() < 0.1:
                items[at:at] = items[at : at + 1] * rng.choice((1, 3, 100))
            else:
                items[at] = _bend(rng, items[at])
            return items
    return _leaf(rng, value)


def _leaf(rng: random.Random, value: Any) -> Any:
    if type(value) is int and rng.random() < 0.5:
        return rng.choice((value + 1, value - 1, -value, value * 2, value << 20))
    return rng.choice(_LEAVES)
