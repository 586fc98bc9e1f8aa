"""Replays a file, with progress on a terminal, and tells how it went."""

import sys
import time
from dataclasses import asdict
from pathlib import Path

import click
import msgspec

from pillion.ops.replay.replaying import Seen, count, replay
from pillion.scheduler.core import Core
from pillion.scheduler.recorded import read
from pillion.version import VERSION
from pillion.words import counted

_LOOK_EVERY = 0.2  # seconds between two lines of progress


def run(file: Path, as_json: bool = False) -> int:
    """The exit code: 0 where all plans are the same, 1 at a difference. Raises NoRecording, OSError."""
    header, entries = read(file)
    core, seen = Core(header.settings), Seen(version=header.version)
    shown, at = sys.stderr.isatty(), 0.0
    for _ in replay(core, entries, seen):
        if shown and time.monotonic() - at > _LOOK_EVERY:
            at = time.monotonic()
            click.echo(f"\r{counted(seen.plans, 'plan')}, {seen.seconds:.0f} s", nl=False, err=True)
    if shown:
        click.echo("\r\x1b[K", nl=False, err=True)
    count(core, seen)
    if as_json:
        click.echo(msgspec.json.encode(asdict(seen)).decode())
    else:
        for line in lines(seen):
            click.echo(line)
    return 0 if seen.difference is None else 1


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
