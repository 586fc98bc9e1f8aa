"""Replays the parts of a recording, with progress on a terminal, and tells how it went."""

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from pillion.ops.replay.replaying import Seen, count, replay
from pillion.scheduler.checkpoint import BadCheckpoint, checkpoint, restored
from pillion.scheduler.core import Core
from pillion.scheduler.recorded import GOES_ON, SUFFIX, Entry, Header, NoRecording, read
from pillion.version import VERSION
from pillion.words import counted

if TYPE_CHECKING:
    from pillion.ops.replay.watching import Watch

_LOOK_EVERY = 0.2  # seconds between two lines of progress


def run(paths: Sequence[Path], as_json: bool = False, watch: "Watch | None" = None) -> int:
    """The exit code: 0 where all plans are the same, 1 at a difference. `watch`: who is shown all of it.

    Raises NoRecording, OSError.
    """
    files = [file for path in paths for file in _parts(path)]
    before: Replayed | None = None
    for file in files:
        try:
            header, entries = read(file)
            core = Core(header.settings) if header.core is None else restored(header.settings, header.core)
            seen = Seen(version=header.version, seam=_seam(before, header))
            if watch is not None:
                watch.begin(file.name, header, core, seen)
            _replay(core, entries, seen, watch)
        except (NoRecording, BadCheckpoint) as error:
            raise NoRecording(f"{file}: {error}") from None
        if as_json:
            click.echo(msgspec.json.encode(asdict(seen)).decode())
        else:
            for line in ([f"{file.name}:"] if len(files) > 1 else []) + lines(seen):
                click.echo(line)
        if seen.difference is not None or seen.seam is False:
            return 1
        before = Replayed(header, core, seen.end)
    return 0


@dataclass(frozen=True, slots=True)
class Replayed:
    """A part, and the core as it is at its end."""

    header: Header
    core: Core
    end: str


def _parts(path: Path) -> list[Path]:
    """The file; of a folder all recordings, each life's parts in order. Raises NoRecording, OSError."""
    if not path.is_dir():
        return [path]
    found = {file: read(file)[0] for file in path.glob(f"*{SUFFIX}")}
    if not found:
        raise NoRecording(f"{path} holds no recording")
    return sorted(found, key=lambda file: (found[file].replica, found[file].life, found[file].part, file))


def _seam(before: Replayed | None, header: Header) -> bool | None:
    """Whether a part begins with what the one before ended with, where that is known."""
    if before is None or before.end != GOES_ON or header.core is None:
        return None
    ours, theirs = before.header, header
    if (ours.replica, ours.life, ours.part + 1) != (theirs.replica, theirs.life, theirs.part):
        return None
    return checkpoint(before.core) == header.core


def _replay(core: Core, entries: Iterable[Entry], seen: Seen, watch: "Watch | None") -> None:
    shown, at, start = sys.stderr.isatty(), 0.0, core.snapshot()
    for _ in replay(core, entries, seen) if watch is None else replay(core, entries, seen, watch.heard):
        if shown and time.monotonic() - at > _LOOK_EVERY:
            at = time.monotonic()
            click.echo(f"\r{counted(seen.plans, 'plan')}, {seen.seconds:.0f} s", nl=False, err=True)
    if shown:
        click.echo("\r\x1b[K", nl=False, err=True)
    count(core, seen, start)


def lines(seen: Seen) -> list[str]:
    """What was seen, in words."""
    told = [
        f"{counted(seen.entries, 'event')} over {seen.seconds:.1f} s, {counted(seen.requests, 'request')} "
        f"with {counted(seen.sequences, 'sequence')}",
        f"{counted(seen.plans, 'plan')} of {counted(seen.steps, 'step')}, {seen.hybrid} with decodes and "
        f"chunks: {seen.decodes} decode rows, {counted(seen.chunks, 'chunk')} of {seen.chunk_tokens} tokens, "
        f"the widest step {seen.widest} tokens",
        f"{counted(seen.preemptions, 'preemption')} ({seen.recomputed} tokens computed again), "
        f"{seen.hits} of {seen.queried} tokens found in the prefix cache, "
        f"{counted(seen.failed, 'failed step')}, "
        f"executor attached {counted(seen.attached, 'time')}, lost {counted(seen.lost, 'time')}",
    ]
    if seen.seam is False:
        told.append("it does not begin with what the part before ended with")
    difference = seen.difference
    if difference is None:
        told.append(f"the recording ends: {seen.end or 'it was cut off'}")
        told.append("every plan is the same")
        return told
    told.append(
        f"the first difference is behind event {difference.entry}, "
        f"{difference.event} at {difference.now:.6f} s:"
    )
    told += difference.what
    if seen.version != VERSION:
        told.append(f"it was recorded by release {seen.version}, this one is {VERSION}")
    return told
