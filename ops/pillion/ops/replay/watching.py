"""What steps carried as a recording went on, in memory that does not grow with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pillion.ops.measure import Windows
from pillion.ops.replay.replaying import Seen
from pillion.scheduler.core import Core
from pillion.scheduler.messages import (
    Command,
    Connected,
    Disconnected,
    Event,
    Plan,
    SendPlan,
    StepDone,
    StepFailed,
)
from pillion.scheduler.recorded import GOES_ON, Header

KINDS = ("decodes", "prompts", "decodes and prompts")
MARKS = 8  # losses and failed steps that are kept with their time
_POINTS = 800  # steps that are kept one by one; every other goes when there are more
_STEPS = ("steps", "seconds", "predicted", "decodes", "prompts", "budget")
_STANDS = ("waiting", "running", "in_use", "cached")  # times the seconds


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    header: Header
    seen: Seen


class Watch:
    """Of all parts together. Times are seconds since the first began; of several replicas all are means."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.windows = Windows((*_STEPS, *_STANDS, "covered"), width=0.01, most=240)
        self.steps: list[tuple[str, float, float]] = []  # one of KINDS, seconds as predicted, as they were
        self.marks: list[tuple[float, str]] = []
        self.at = 0.0
        self.longest = 0.0  # step, seconds
        self.most_waiting = 0
        self.every = self._next = 1  # so many steps for one that is kept
        self._core: Core | None = None
        self._shift: float | None = None
        self._flights: dict[int, SendPlan] = {}
        self._since = 0.0  # since when it stands so
        self._stands: tuple[float, ...] | None = None

    def begin(self, name: str, header: Header, core: Core, seen: Seen) -> None:
        """What is heard from now on is of this part."""
        if not (self.parts and _goes_on(self.parts[-1], header)):
            self._flights.clear()
            self._stands = None
        self.parts.append(Part(name, header, seen))
        self._core, self._shift = core, None

    def heard(self, event: Event, now: float, commands: Sequence[Command]) -> None:
        assert self._core is not None
        if self._shift is None:
            self._shift = self.parts[-1].header.started - self.parts[0].header.started - now
        self.at = at = max(now + self._shift, 0.0)
        self._stood(at)
        match event:
            case StepDone():
                self._done(event, at)
            case StepFailed():
                self._mark(at, "a step failed")
            case Disconnected():
                self._mark(at, "executor lost")
                self._flights.clear()
            case Connected():
                self._flights.clear()
        for command in commands:
            if isinstance(command, SendPlan):
                self._flights[command.plan.step] = command
        snapshot = self._core.snapshot(now)
        blocks = snapshot.blocks or 1
        self._stands = (
            snapshot.waiting,
            snapshot.running,
            snapshot.referenced_blocks / blocks,
            snapshot.cached_blocks / blocks,
        )
        self.most_waiting = max(self.most_waiting, snapshot.waiting)

    def _stood(self, at: float) -> None:
        """From the event before to this one."""
        if self._stands is not None and at > self._since:
            long = at - self._since
            sums = {name: long * value for name, value in zip(_STANDS, self._stands, strict=True)}
            self.windows.spread(self._since, at, covered=long, **sums)
        self._since = at

    def _done(self, event: StepDone, at: float) -> None:
        sent = self._flights.pop(event.step, None)
        if sent is None or not event.steps:  # of a part that was not replayed, or without work
            return
        plan, steps = sent.plan, event.steps
        predicted = sent.predicted * steps / plan.steps
        self.windows.spread(
            max(at - event.seconds, 0.0),
            at,
            steps=steps,
            seconds=event.seconds,
            predicted=predicted,
            decodes=plan.decodes * steps,
            prompts=plan.tokens - plan.decodes,
            budget=plan.budget * steps,
        )
        self.longest = max(self.longest, event.seconds / steps)
        self._next -= 1
        if not self._next:
            self._next = self.every
            self.steps.append((kind(plan), predicted / steps, event.seconds / steps))
            if len(self.steps) > _POINTS:
                self.steps = self.steps[::2]
                self.every *= 2

    def _mark(self, at: float, what: str) -> None:
        if len(self.marks) < MARKS:
            self.marks.append((at, what))

    def told(self) -> list[dict[str, Any]]:
        """Each window: when it began, and means; None where no step ran, or nothing is known."""
        return [_means(window) for window in self.windows.told()]


def _goes_on(part: Part, header: Header) -> bool:
    """Whether the next part begins where this one ended."""
    last = part.header
    after = (last.replica, last.life, last.part + 1)
    return part.seen.end == GOES_ON and after == (header.replica, header.life, header.part)


def kind(plan: Plan) -> str:
    """One of KINDS."""
    if plan.decodes == len(plan.slots):
        return KINDS[0]
    return KINDS[2] if plan.decodes else KINDS[1]


def _means(window: dict[str, Any]) -> dict[str, Any]:
    steps, covered = window["steps"], window["covered"]
    return {
        "at": window["at"],
        "steps": steps,
        **{name: window[name] / steps if steps else None for name in _STEPS[1:]},
        **{name: window[name] / covered if covered else None for name in _STANDS},
    }
