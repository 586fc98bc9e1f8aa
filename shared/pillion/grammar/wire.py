"""What the two sides of a grammar process say to each other: frames of MessagePack over a socket."""

import socket
import struct
from typing import Any

import msgspec

from pillion.contracts.entries import Constraint

PLACES = 64  # for constraints that are compiled before a slot is opened with them
HEADER = 64  # bytes before the masks in the shared memory
NOBODY = -1
CURRENT = struct.Struct("<qq")  # their first: the slot and the place in work, or NOBODY
_LENGTH = struct.Struct("<I")


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


class Check(Message, frozen=True):
    """Answered by the error, "" for none."""

    constraint: Constraint


class Open(Message, frozen=True):
    """A sequence takes a slot with the tokens generated so far. Not answered."""

    slot: int
    constraint: Constraint
    tokens: list[int]


class Compile(Message, frozen=True):
    """Comes by a socket of its own. Is kept in the place of what was there. Answered by True."""

    place: int
    constraint: Constraint


class Close(Message, frozen=True):
    """Not answered."""

    slots: list[int]


class Mask(Message, frozen=True):
    """Adds tokens to slots, then makes masks. Answered by a list of Made, one a slot."""

    notes: list[tuple[int, int]]
    slots: list[int]


class Made(msgspec.Struct, frozen=True, array_like=True):
    """`error` "" means that the slot's mask is in the shared memory. `accepting`: the text may end here."""

    accepting: bool
    error: str = ""


def width(vocab_size: int) -> int:
    """Bytes of a mask: a bit a token, in words of 32."""
    return -(-vocab_size // 32) * 4


def send(to: socket.socket, message: Any) -> None:
    payload = msgspec.msgpack.encode(message)
    to.sendall(_LENGTH.pack(len(payload)) + payload)


def receive(source: socket.socket) -> bytes:
    """One frame's payload. Raises EOFError where the other side is gone."""
    (length,) = _LENGTH.unpack(_exactly(source, _LENGTH.size))
    return _exactly(source, length)


def _exactly(source: socket.socket, length: int) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        part = source.recv(length - len(parts))
        if not part:
            raise EOFError("the other side is gone")
        parts += part
    return bytes(parts)
