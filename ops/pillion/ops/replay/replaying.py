"""Feeds recorded events to a new core and compares what it answers. Pure."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest

import msgspec

from pillion.scheduler import recorded
from pillion.scheduler.core import Core
from pillion.scheduler.messages import (
    Command,
    Connected,
    Disconnected,
    Event,
    Snapshot,
    StepFailed,
    Submitted,
)
from pillion.scheduler.recorded import END, Entry, Planned, answered


@dataclass(frozen=True, slots=True)
class Difference:
    """The first answer that is not the recorded one."""

    entry: int  # events before it
    event: str  # its kind
    now: float
    what: tuple[str, ...]  # a line each


@dataclass(slots=True)
class Seen:
    """What the recording holds, up to where it was replayed."""

    entries: int = 0
    first: float = 0.0
    last: float = 0.0
    requests: int = 0
    sequences: int = 0
    plans: int = 0
    steps: int = 0
    decodes: int = 0  # rows, all steps
    chunks: int = 0
    chunk_tokens: int = 0
    hybrid: int = 0  # plans with both
    widest: int = 0  # tokens
    attached: int = 0
    lost: int = 0
    failed: int = 0
    preemptions: int = 0
    recomputed: int = 0
    hits: int = 0
    queried: int = 0
    end: str = ""  # why it ends, where that is said
    seam: bool | None = None  # whether it begins with what the part before ended with; None: not compared
    difference: Difference | None = None
    version: str = field(default="")

    @property
    def seconds(self) -> float:
        return self.last - self.first

    def plan(self, plan: Planned) -> None:
        chunks = plan.counts[plan.decodes :]
        passes = max(1, max(plan.samples, default=0))
        self.plans += 1
        self.steps += passes
        self.decodes += sum(plan.samples[: plan.decodes])
        self.chunks += len(chunks)
        self.chunk_tokens += sum(chunks)
        self.hybrid += bool(plan.decodes and chunks)
        self.widest = max(self.widest, sum(plan.counts))


Heard = Callable[[Event, float, list[Command]], None]


def replay(
    core: Core, entries: Iterable[Entry], seen: Seen, heard: Heard = lambda event, now, commands: None
) -> Iterator[Seen]:
    """Gives `seen` after each event; the last time with the first difference, if there is one. `heard`: told
    of each event that the core answers as recorded, and of the answer.

    Raises pillion.scheduler.recorded.NoRecording.
    """
    for entry in entries:
        if entry.kind == END:
            seen.end = recorded.reason(entry)
            return
        event = recorded.event(entry)
        commands = core.handle(event, entry.now)
        plans, rest, wake = answered(commands)
        if (plans, rest, wake) != (entry.plans, entry.rest, entry.wake):
            seen.difference = Difference(
                seen.entries, entry.kind, entry.now, tuple(_differences(entry, plans, rest, wake))
            )
            yield seen
            return
        seen.first = seen.first if seen.entries else entry.now
        seen.last = entry.now
        seen.entries += 1
        match event:
            case Submitted(request):
                seen.requests += 1
                seen.sequences += request.n * len(request.prompts)
            case Connected():
                seen.attached += 1
            case Disconnected():
                seen.lost += 1
            case StepFailed():
                seen.failed += 1
        for plan in plans:
            seen.plan(plan)
        heard(event, entry.now, commands)
        yield seen


def count(core: Core, seen: Seen, start: Snapshot) -> None:
    """What only the core knows, at the end. `start`: what it knew before the first event."""
    end = core.snapshot()
    seen.preemptions = end.preemptions - start.preemptions
    seen.recomputed = end.recomputed_tokens - start.recomputed_tokens
    seen.hits = end.hit_tokens - start.hit_tokens
    seen.queried = end.queried_tokens - start.queried_tokens


def _differences(entry: Entry, plans: tuple[Planned, ...], rest: int, wake: float | None) -> Iterator[str]:
    for recorded_plan, plan in zip_longest(entry.plans, plans):
        if recorded_plan == plan:
            continue
        yield f"recorded: {said(recorded_plan)}"
        yield f"replayed: {said(plan)}"
        if recorded_plan is not None and plan is not None:
            for name in Planned.__struct_fields__:
                one, other = getattr(recorded_plan, name), getattr(plan, name)
                if one != other:
                    yield f"  {name}: {_short(one)} became {_short(other)}"
    if rest != entry.rest:
        yield "what is published or refused is another"
    if wake != entry.wake:
        yield f"the core wants to be woken at {wake} instead of {entry.wake}"


def said(plan: Planned | None) -> str:
    """`step 7: 3 decodes, chunks 64 of 0:0 and 13 of 0:5; budget 80`"""
    if plan is None:
        return "no plan"
    chunks = [
        f"{count} at {start} in slot {slot}"
        for slot, start, count in list(zip(plan.slots, plan.starts, plan.counts, strict=True))[plan.decodes :]
    ]
    parts = [f"{plan.decodes} decodes" if plan.decodes != 1 else "1 decode"]
    if chunks:
        parts.append("chunks of " + ", ".join(chunks))
    if plan.take:
        parts.append(f"takes in {', '.join(f'{take.request}/{take.choice}' for take in plan.take)}")
    if plan.release:
        parts.append(f"releases slots {', '.join(map(str, plan.release))}")
    return f"step {plan.step}: {'; '.join(parts)}; budget {plan.budget}"


def _short(value: object) -> str:
    text = repr(msgspec.to_builtins(value))
    return text if len(text) <= 160 else f"{text[:150]}... ({len(text)} characters)"
