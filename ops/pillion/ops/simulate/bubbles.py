"""What pipeline stages waited for, of all replicas, in memory that grows with what runs alone."""

from collections import defaultdict
from typing import Any

from pillion.ops.measure import Histogram
from pillion.scheduler.messages import Plan

from .stages import KINDS, Passage

DEFINITIONS = {
    "stage time": "Seconds of the run times stages times replicas.",
    "bubbles": "How long stages waited for a plan while the pipeline had work: as many plans in flight as "
    "stages, or the plan on its way. By what the stage had run and what it waited for: both with chunks of "
    "prompts (PB1), one of them (PB2), none (PB3). Other waits are for want of work.",
    "bubbles of a request": "The bubbles of all stages ahead of each plan that it was in, summed.",
}


class Bubbles:
    """Sums, and the bubbles of each request."""

    def __init__(self, stages: int, replicas: int) -> None:
        self.stages = stages
        self.busy = 0.0
        self.seconds = [0.0] * len(KINDS)
        self.requests = Histogram()
        self._replicas = replicas
        self._holders: defaultdict[str, dict[int, str]] = defaultdict(dict)  # by replica and slot
        self._waits: dict[str, float] = {}  # of those that run

    def ran(self, replica: str, plan: Plan, seconds: float, passage: Passage) -> None:
        """`seconds`: that all stages together computed."""
        self.busy += seconds
        holders, waits = self._holders[replica], self._waits
        for take in plan.take:
            holders[take.slot] = take.request.id
            waits.setdefault(take.request.id, 0.0)
        waited = sum(passage.bubbles)
        if waited:
            for kind, each in enumerate(passage.bubbles):
                self.seconds[kind] += each
            for slot in plan.slots:
                if holders[slot] in waits:  # else it has ended: the plan was sent before that was known
                    waits[holders[slot]] += waited

    def ended(self, request: str) -> None:
        waits = self._waits.pop(request, None)
        if waits is not None:
            self.requests.add(waits)

    def summary(self, seconds: float) -> dict[str, Any]:
        """Of a run that took so long. Shares are of stage time; None where it took none."""
        whole = seconds * self.stages * self._replicas
        requests = self.requests
        return {
            "stages": self.stages,
            "stage_s": whole,
            "idle_share": 1 - self.busy / whole if whole else None,
            "bubble_share": sum(self.seconds) / whole if whole else None,
            **{f"{kind.lower()}_s": each for kind, each in zip(KINDS, self.seconds, strict=True)},
            "request_s": {
                "median": requests.quantile(0.5),
                "p99": requests.quantile(0.99),
                "mean": requests.total / requests.count,
            }
            if requests.count
            else None,
        }
