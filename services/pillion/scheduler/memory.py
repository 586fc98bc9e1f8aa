"""What is remembered of steps and of live sequences, to explain their delays."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from pillion.contracts.timeline import ChoiceSeen, GapSeen, StepSeen

from .messages import Plan

GAPS = 3  # of a choice
GAP_STEPS = 8  # of a gap
MARKS = 32  # in a gap

Causes = tuple[int, int, int]
"""Steps, while somebody waited, that had no token left, no slot, no room."""


@dataclass(slots=True, eq=False)
class Step:
    serial: int  # over all attachments
    plan: Plan
    sent: float
    predicted: float
    waiting: int
    ended: float = 0.0
    seconds: float = 0.0
    idle: float = 0.0
    passes: int = 1

    def seen(self, wall: float, own: int) -> StepSeen:
        plan = self.plan
        return StepSeen(
            plan.step, wall + self.sent, wall + self.ended, self.seconds, self.idle, self.predicted,
            plan.budget, plan.decodes, plan.counts[plan.decodes :], self.passes, self.waiting, own,
        )  # fmt: skip

    def own(self, tenures: Iterable["Tenure"]) -> int:
        """Tokens computed for who held these slots."""
        plan = self.plan
        for tenure in tenures:
            if tenure.since <= self.serial <= tenure.until and tenure.slot in plan.slots:
                return plan.counts[plan.slots.index(tenure.slot)]
        return 0


@dataclass(slots=True, eq=False)
class Tenure:
    """A slot, and the first and last step of whoever held it."""

    slot: int
    since: int
    until: float = inf


@dataclass(slots=True, eq=False)
class Gap:
    position: int
    began: float
    seconds: float
    steps: tuple[tuple[Step, int], ...]  # each with the sequence's own tokens
    marks: tuple[tuple[str, float], ...]

    def seen(self, wall: float) -> GapSeen:
        kept = sorted(self.steps, key=lambda pair: -pair[0].seconds)[:GAP_STEPS]
        kept.sort(key=lambda pair: pair[0].serial)
        left = [step for step, own in self.steps if (step, own) not in kept]
        return GapSeen(
            self.position,
            wall + self.began,
            self.seconds,
            tuple(step.seen(wall, own) for step, own in kept),
            len(left),
            sum(step.seconds for step in left),
            sum(step.idle for step in left),
            tuple((mark, wall + at) for mark, at in self.marks),
        )


@dataclass(slots=True, eq=False)
class Choice:
    index: int
    prompt: int
    before: int
    ahead: int
    running: int
    causes: Causes  # counted when it came; when it was first planned: since then
    slot: int = -1
    ended: bool = False
    tokens: int = 0
    planned: float | None = None
    first: float | None = None
    last: float = 0.0  # when its last token came
    serial: int = 0  # of the step that brought it
    least: float = 0.0  # a gap that is kept is longer
    gaps: list[Gap] = field(default_factory=list)
    marks: list[tuple[str, float]] = field(default_factory=list)  # since the last token
    tenures: list[Tenure] = field(default_factory=list)  # that reached into that time
    chunks: list[tuple[Step, int]] = field(default_factory=list)
    more_chunks: int = 0
    cached: int = 0
    preemptions: int = 0
    recomputed: int = 0

    @property
    def worst(self) -> float:
        return max((gap.seconds for gap in self.gaps), default=0.0)

    def mark(self, what: str, now: float) -> None:
        if len(self.marks) < MARKS:
            self.marks.append((what, now))

    def seen(self, wall: float, causes: Causes) -> ChoiceSeen:
        full, no_slot, no_room = self.causes if self.planned is not None else since(causes, self.causes)
        return ChoiceSeen(
            self.index, self.prompt, self.before, self.tokens,
            0.0 if self.planned is None else wall + self.planned,
            0.0 if self.first is None else wall + self.first,
            self.ahead, self.running, full, no_slot, no_room, self.cached,
            tuple(step.seen(wall, own) for step, own in self.chunks if step.ended),
            self.more_chunks, self.preemptions, self.recomputed, tuple(gap.seen(wall) for gap in self.gaps),
        )  # fmt: skip


def since(now: Causes, then: Causes) -> Causes:
    return now[0] - then[0], now[1] - then[1], now[2] - then[2]
