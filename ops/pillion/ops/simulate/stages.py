"""A chain of pipeline stages: when each runs which plan, and what it waits for meanwhile.

A stage begins a plan when the stage before has done it and itself has done the plan before; the first one
also waits for the tokens that the plan's decodes go on from. Each takes an equal share of the plan's time.

Bubbles are a stage's waits while the pipeline has work, in SARATHI's kinds (arXiv 2308.16369): the plan that
the stage has run and the one that it waits for have both chunks of prompts (PB1), one of them has (PB2), or
none (PB3). The first stage waits for the oldest plan in flight, at the other end, where as many are in flight
as there are stages; any other for the plan behind. A wait that came from the first stage stays of its kind.
With fewer plans in flight the first stage's wait is for want of work: no bubble, nor is what comes of it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pillion.scheduler.messages import Plan
from pillion.steptime import Work

KINDS = ("PB1", "PB2", "PB3")

Hop = Callable[[int], float]
"""Seconds that so many rows take from a stage to the next."""


def at_once(rows: int) -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class Passage:
    """Of one plan, seconds."""

    start: float
    end: float  # of the last stage
    idle: float  # how long the first stage waited for the plan itself, its tokens being there
    bubbles: tuple[float, float, float]  # ahead of it, at all stages, by kind


class Stages:
    """Of one executor."""

    def __init__(self, count: int = 1, hop: Hop = at_once) -> None:
        self.count = count
        self._hop = hop
        self._free = [0.0] * count  # when each has done all that came
        self._latest: deque[tuple[float, bool]] = deque(maxlen=count)  # plans: their end, whether with chunks
        self._brought: dict[int, float] = {}  # by slot: when its last token was there

    def run(self, plan: Plan, works: Sequence[Work], seconds: float, comes: float, gap: float) -> Passage:
        """Runs a plan's passes, which take so long in all, on one stage; each stage takes its share.

        It `comes` then; `gap`: what passes between two plans however early it does. Plans run strictly in
        order, so when this one will is known at once.
        """
        free, latest = self._free, self._latest
        ready = max([free[0], *self._tokens(plan)])
        start = max(comes, ready + gap)
        chunks = any(work.chunks for work in works)
        rows = sum(work.rows for work in works)
        full = len(latest) == self.count
        first = max(min(start, latest[0][0]) - free[0], 0.0) if full else 0.0
        idle = start - free[0] - first  # for want of work
        bubbles = [0.0, 0.0, 0.0]
        if full:
            bubbles[_kind(latest[0][1], latest[-1][1])] = first
        at = free[0] = start + seconds / self.count
        for stage in range(1, self.count):
            at = max(at + self._hop(rows), free[stage])
            if latest:
                waited = max(at - free[stage] - idle, 0.0)
                same = min(waited, first)
                if full:
                    bubbles[_kind(latest[0][1], latest[-1][1])] += same
                bubbles[_kind(latest[-1][1], chunks)] += waited - same
            at = free[stage] = at + seconds / self.count
        latest.append((at, chunks))
        self._bring(plan, at)
        return Passage(start, at, start - ready, (bubbles[0], bubbles[1], bubbles[2]))

    def _tokens(self, plan: Plan) -> Sequence[float]:
        """When those were there that the plan's decodes go on from; on one stage they always are."""
        if self.count == 1:
            return ()
        return [self._brought[slot] for slot in plan.slots[: plan.decodes]]

    def _bring(self, plan: Plan, at: float) -> None:
        if self.count > 1:
            self._brought.update(
                (slot, at) for slot, sample in zip(plan.slots, plan.samples, strict=True) if sample
            )


def _kind(one: bool, other: bool) -> int:
    return 2 - one - other
