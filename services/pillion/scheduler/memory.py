"""What is remembered of steps and of live sequences, to explain their delays."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from pillion.contracts.timeline import ChoiceSeen, GapSeen, SpanSeen, StepSeen

from .messages import Plan

GAPS = 3  # of a choice
GAP_STEPS = 8  # of a gap
MARKS = 32  # in a gap
SPANS = 64  # of a choice; neighbours become one when there are more

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


class Spans:
    """All gaps of a choice in their order, in memory that does not grow with them."""

    __slots__ = ("_full", "_gaps", "_longest", "_now", "_width")

    def __init__(self) -> None:
        self._full: list[SpanSeen] = []
        self._width = 1  # gaps of each
        self._gaps, self._longest, self._now = 0, 0.0, 0.0  # of the one that is not full

    def add(self, now: float, seconds: float) -> None:
        self._gaps += 1
        self._now = now
        self._longest = max(self._longest, seconds)
        if self._gaps == self._width:
            self._close()

    def _close(self) -> None:
        full = self._full
        full.append(SpanSeen(self._now, self._gaps, self._longest))
        self._gaps, self._longest = 0, 0.0
        if len(full) == SPANS:
            full[:] = [
                SpanSeen(other.ended, one.gaps + other.gaps, max(one.longest, other.longest))
                for one, other in zip(full[::2], full[1::2], strict=True)
            ]
            self._width *= 2

    def seen(self, wall: float) -> tuple[SpanSeen, ...]:
        last = (SpanSeen(self._now, self._gaps, self._longest),) if self._gaps else ()
        return tuple(SpanSeen(wall + span.ended, span.gaps, span.longest) for span in (*self._full, *last))


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
    spans: Spans = field(default_factory=Spans)
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
            self.spans.seen(wall),
        )  # fmt: skip


def since(now: Causes, then: Causes) -> Causes:
    return now[0] - then[0], now[1] - then[1], now[2] - then[2]
