"""What a scheduler's recording consists of: a header, then each event with its time and what it led to.

A life of the scheduler is recorded in parts, a file each, of which each can be replayed without the others.

A file is a first line, then frames: a length (4 bytes, little-endian) and so many bytes, zlib over
MessagePack. The first frame is the header, each other one a list of entries. A file that was cut off ends
with its last whole frame.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from pillion.config import Scheduler

from .checkpoint import Checkpoint
from .messages import (
    Cancelled,
    Command,
    Compile,
    Compiled,
    Connected,
    Disconnected,
    Event,
    Ordered,
    Plan,
    Publish,
    Refuse,
    SendPlan,
    StepDone,
    StepFailed,
    Submitted,
    WakeAt,
    Woken,
)

SCHEMA = 2
READABLE = (1, 2)  # the first began with the process always
MAGIC = b"pillion recording\n"
SUFFIX = ".rec"
EVENTS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (
        *(Connected, Disconnected, Submitted, Cancelled, Ordered, StepDone, StepFailed, Compiled, Woken),
    )
}
GOES_ON = "it goes on in the next part"
END = "End"  # the kind of the last entry, whose event is a text: why there is no more
_LENGTH = struct.Struct("<I")
_LONGEST = 1 << 28  # bytes of a frame, unpacked


class NoRecording(ValueError):
    """The file is none, or one that this release cannot replay; says why."""


class Header(msgspec.Struct, frozen=True):
    """What a replay starts from."""

    version: str  # the release
    replica: str
    started: float  # seconds since the epoch
    settings: Scheduler
    schema: int = SCHEMA
    life: float = 0.0  # when the first part was begun; the parts of a life can be put together
    part: int = 0
    core: Checkpoint | None = None  # from which it goes on; a new one where there is none


class Taken(msgspec.Struct, frozen=True, array_like=True):
    """As `messages.Take`, without tokens."""

    slot: int
    incarnation: int
    request: str
    choice: int
    tokens: int
    prompt_length: int
    blocks: tuple[int, ...]
    max_tokens: int


class Planned(msgspec.Struct, frozen=True, array_like=True):
    """As `messages.Plan`."""

    step: int
    release: tuple[int, ...]
    take: tuple[Taken, ...]
    slots: tuple[int, ...]
    starts: tuple[int, ...]
    counts: tuple[int, ...]
    samples: tuple[int, ...]
    block_counts: tuple[int, ...]
    blocks: tuple[int, ...]
    decodes: int
    budget: int
    scored: int = 0


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One event, and what the core answered."""

    now: float  # seconds of the scheduler's monotonic clock
    kind: str
    event: msgspec.Raw
    plans: tuple[Planned, ...] = ()
    rest: int = 0  # a checksum of what was published and refused, tokens left out
    wake: float | None = None


def planned(plan: Plan) -> Planned:
    takes = tuple(
        Taken(
            take.slot, take.incarnation, take.request.id, take.choice, len(take.tokens), take.prompt_length,
            take.blocks, take.max_tokens,
        )
        for take in plan.take
    )  # fmt: skip
    return Planned(
        plan.step, plan.release, takes, plan.slots, plan.starts, plan.counts, plan.samples,
        plan.block_counts, plan.blocks, plan.decodes, plan.budget, plan.scored,
    )  # fmt: skip


def answered(commands: Iterable[Command]) -> tuple[tuple[Planned, ...], int, float | None]:
    """An entry's `plans`, `rest` and `wake`."""
    plans, rest, wake = [], 0, None
    for command in commands:
        match command:
            case SendPlan(plan):
                plans.append(planned(plan))
            case Publish(step, items, finished, parked):
                shapes = [
                    (item.request, item.choice, item.position, len(item.tokens), item.finish, item.cached)
                    for item in items
                ]
                rest = _checked(rest, (step, shapes, finished, parked))
            case Compile(place):
                rest = _checked(rest, place)
            case Refuse(refusal):
                rest = _checked(rest, (refusal.request, refusal.status, refusal.code))
            case WakeAt(at):
                wake = at
    return tuple(plans), rest, wake


def entry(event: Event, now: float, commands: Iterable[Command]) -> Entry:
    return Entry(now, type(event).__name__, msgspec.Raw(_pack(event)), *answered(commands))


def end(now: float, why: str) -> Entry:
    return Entry(now, END, msgspec.Raw(_pack(why)))


def event(entry: Entry) -> Event:
    """Raises NoRecording."""
    kind = EVENTS.get(entry.kind)
    if kind is None:
        raise NoRecording(f"it has an event {entry.kind!r}, which this release does not know")
    try:
        return msgspec.msgpack.decode(entry.event, type=kind)
    except msgspec.DecodeError as error:
        raise NoRecording(f"an event {entry.kind} cannot be read: {error}") from None


def reason(entry: Entry) -> str:
    """Of the last entry."""
    return msgspec.msgpack.decode(entry.event, type=str)


def frame(content: Header | list[Entry]) -> bytes:
    packed = zlib.compress(_pack(content), 1)
    return _LENGTH.pack(len(packed)) + packed


def read(path: Path) -> tuple[Header, Iterator[Entry]]:
    """The header, and the entries as they are read. Raises NoRecording, also later, and OSError."""
    file = path.open("rb")
    if file.readline(len(MAGIC)) != MAGIC:
        file.close()
        raise NoRecording("it is no recording of a scheduler")
    frames = _frames(file)
    first = next(frames, None)
    if first is None:
        raise NoRecording("it ends before its header")
    schema = _decoded(first, dict[str, Any]).get("schema")
    if schema not in READABLE:
        raise NoRecording(f"its schema is {schema}, this release reads {' and '.join(map(str, READABLE))}")
    return _decoded(first, Header), (each for content in frames for each in _decoded(content, list[Entry]))


def _frames(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while len(head := file.read(_LENGTH.size)) == _LENGTH.size:
            (length,) = _LENGTH.unpack(head)
            packed = file.read(min(length, _LONGEST))
            if len(packed) < length:
                return
            unpacking = zlib.decompressobj()
            try:
                content = unpacking.decompress(packed, _LONGEST)
            except zlib.error as error:
                raise NoRecording(f"it is damaged: {error}") from None
            if not unpacking.eof:
                raise NoRecording("it is damaged: a frame is too long")
            yield content


def _decoded(content: bytes, kind: Any) -> Any:
    try:
        return msgspec.msgpack.decode(content, type=kind)
    except msgspec.DecodeError as error:
        raise NoRecording(f"it cannot be read: {error}") from None


def _checked(checksum: int, content: object) -> int:
    return zlib.crc32(_pack(content), checksum)


_pack = msgspec.msgpack.Encoder().encode
