"""The plans in flight: when they leave the executor, as far as is known, and when the next is due.

An executor is a chain of stages, often of one. Each takes an equal share of a step; it begins a plan when the
stage before has done it and itself has done the plan before. One plan more than there are stages is in
flight: the one prepared behind them, decided as late as is safe, so that arrivals need not wait a step more.
"""

from collections import deque
from dataclasses import dataclass
from math import inf

from pillion.steptime import Work

from .sequence import Sequence

LEAD_MIN, LEAD_MAX = 0.001, 0.050  # seconds
LEAD_FALL = 0.99  # the lead shrinks by so much a step until the executor is seen idle


@dataclass(slots=True)
class Flight:
    """A plan that was sent and has not returned."""

    step: int  # the plan's number
    rows: list[Sequence]
    ends: tuple[int, ...]  # for each row, the position behind the last that it computes
    work: Work  # of one step
    sent: float
    predicted: float  # seconds that it takes, all its steps, all stages
    pipelined: bool | None  # whether others were in flight; None: they were, but the first stage had no work
    lost: bool = False  # a step before it failed, so its results mean nothing


class Flights(deque[Flight]):
    """The oldest first. They return in order. Times are of the core's clock, in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = 1
        self.lead = LEAD_MIN  # so much before it can begin the next plan is made
        self._left = [-inf]  # when the last that returned left each stage, at the latest

    def attach(self, stages: int) -> None:
        """Of another executor from now on; none may be in flight."""
        self.stages = stages
        self._left = [-inf] * stages

    @property
    def full(self) -> bool:
        """Whether as many are in flight as may be."""
        return len(self) > self.stages

    @property
    def due(self) -> float:
        """When the next must be made, if one is in flight."""
        return self.begins - self.lead

    @property
    def begins(self) -> float:
        """When the next can begin, if one is in flight: the first stage is free and, if there are as many in
        flight as stages, the oldest has brought the tokens that its sequences go on from.
        """
        oldest, free = self._forecast()
        return max(oldest, free) if len(self) >= self.stages else free

    def overdue(self, now: float) -> float:
        """Seconds that the oldest is past its predicted end; 0 where there is none."""
        return max(now - self._forecast()[0], 0.0) if self else 0.0

    def pipelined(self, now: float) -> bool | None:
        """What a plan that is sent now is, as `Flight` has it."""
        if not self:
            return False
        return True if len(self) >= self.stages or now < self._forecast()[1] else None

    def land(self, step: int, now: float) -> Flight | None:
        """Takes out the oldest when it is this one."""
        if not self or self[0].step != step:
            return None
        flight = self.popleft()
        share = flight.predicted / self.stages
        self._left = [now - stage * share for stage in reversed(range(self.stages))]
        return flight

    def adjust(self, flight: Flight, now: float, seconds: float, gap: float) -> None:
        """The lead, when a plan returned that took so long. `gap`: how long the executor waited for it.

        With none other in flight it had waited anyway: then what counts is the way to it and back.
        """
        if flight.pipelined is None:
            return
        idle = gap if flight.pipelined else now - flight.sent - seconds
        needed = idle + self.lead if flight.pipelined and idle > 0 else idle
        self.lead = min(max(needed, self.lead * LEAD_FALL, LEAD_MIN), LEAD_MAX)

    def _forecast(self) -> tuple[float, float]:
        """When the oldest leaves the last stage, and the newest the first."""
        free, oldest = list(self._left), inf
        for flight in self:
            at, share = flight.sent, flight.predicted / self.stages
            for stage in range(self.stages):
                at = free[stage] = max(at, free[stage]) + share
            oldest = min(oldest, at)
        return oldest, free[0]
