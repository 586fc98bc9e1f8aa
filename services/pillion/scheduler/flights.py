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
        return self._begins(*self._forecast())

    def overdue(self, now: float) -> float:
        """Seconds that the oldest is past its predicted end; 0 where there is none."""
        return max(now - self._forecast()[0][0], 0.0) if self else 0.0

    def pipelined(self, now: float) -> bool | None:
        """What a plan that is sent now is, as `Flight` has it."""
        if not self:
            return False
        return True if len(self) >= self.stages or now < self._forecast()[1][0] else None

    def time_left(self, target: float, told: float | None, now: float) -> float:
        """Seconds that a plan sent now may take, all its stages, and no stream waits longer than `target`.

        `told`: when the stream in no plan that has waited longest had its last token. The streams of a plan
        in flight go on as many plans later as there are stages, and the plans between are taken to be as long
        as this one. A plan's tokens leave the last stage, where it may wait for the plan before.
        """
        ends, free = self._forecast()
        stages = self.stages
        waits = [] if told is None else [(told, stages)]
        for behind, (flight, end) in enumerate(zip(reversed(self), reversed(ends), strict=True), 1):
            if flight.work.sampled:
                waits.append((max(end, now), behind))
        free[0] = max(self._begins(ends, free), now) if self else now
        return min(
            (
                (target - (at - since)) * stages / (2 * stages - stage - behind)
                for since, behind in waits
                for stage, at in enumerate(free)
            ),
            default=target,
        )

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

    def _begins(self, ends: list[float], free: list[float]) -> float:
        return max(ends[0], free[0]) if len(self) >= self.stages else free[0]

    def _forecast(self) -> tuple[list[float], list[float]]:
        """When each leaves the last stage, and when each stage has done them all."""
        free, ends = list(self._left), []
        brought = deque(
            [self._left[-1]], self.stages
        )  # when the tokens of those before were there, as far back
        for flight in self:
            at, share = flight.sent, flight.predicted / self.stages
            if flight.work.decodes and len(brought) == self.stages:
                at = max(at, brought[0])
            for stage in range(self.stages):
                at = free[stage] = max(at, free[stage]) + share
            ends.append(at)
            brought.append(at)
        return ends, free
