"""Fits a cost model to steps of a stack that serves: other processes take their turns on the same cores.

What a scheduler recorded has each plan and how long it took. Pure, but for reading the recording.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import msgspec
import numpy as np

from pillion.ops.profile import fit
from pillion.ops.profile.fit import Measured
from pillion.scheduler import recorded
from pillion.scheduler.messages import StepDone, Submitted
from pillion.scheduler.recorded import Entry, Planned
from pillion.scheduler.work import of_rows
from pillion.steptime import Curve, StepTime, Ways, Work

FEWEST = 50  # steps, below which nothing is fitted


@dataclass(frozen=True, slots=True)
class Step:
    """Of a plan with one step."""

    work: Work
    seconds: float
    at: float  # when it was over, seconds of the monotonic clock


@dataclass(slots=True)
class Served:
    """What a recording tells. Seconds; requests in the order in which the scheduler heard of them."""

    steps: list[Step] = field(default_factory=list)
    firsts: list[float | None] = field(
        default_factory=list
    )  # of each request, to the scheduler's first token


def read(folder: Path) -> Served:
    """Of all recordings in the folder. Raises pillion.scheduler.recorded.NoRecording."""
    found = Served()
    for path in sorted(folder.glob(f"*{recorded.SUFFIX}")):
        _, entries = recorded.read(path)
        _gather(entries, found)
    return found


def _gather(entries: Iterable[Entry], found: Served) -> None:
    plans: dict[int, Planned] = {}
    holders: dict[int, str] = {}  # by incarnation
    heard: dict[str, tuple[int, float]] = {}  # of requests without a token: their place, and when they came
    for entry in entries:
        if entry.kind == recorded.END:
            return
        event = recorded.event(entry)
        for plan in entry.plans:
            plans[plan.step] = plan
            holders |= {take.incarnation: take.request for take in plan.take}
        match event:
            case Submitted(request):
                heard[request.id] = len(found.firsts), entry.now
                found.firsts.append(None)
            case StepDone():
                plan_or_none = plans.pop(event.step, None)
                if plan_or_none is not None and event.steps == 1 == max(1, *plan_or_none.samples):
                    found.steps.append(Step(_work(plan_or_none), event.seconds, entry.now))
                for row in event.rows:
                    waiting = heard.pop(holders.get(row.incarnation, ""), None) if row.tokens else None
                    if waiting is not None:
                        found.firsts[waiting[0]] = entry.now - waiting[1]


def _work(plan: Planned) -> Work:
    return of_rows(plan.decodes, plan.starts, plan.counts, plan.samples, plan.scored)


def fitted(alone: StepTime, steps: Sequence[Step], ways: Ways) -> StepTime:
    """`alone`, stretched, with so much more a step and a decode as fits these steps best. FEWEST at least."""
    times = np.array([step.seconds for step in steps])
    terms = np.array([[alone.seconds(step.work), 1.0, float(step.work.sampled)] for step in steps])
    stretch, base, token = (float(value) for value in fit.robust(terms / times[:, None]))
    model = msgspec.structs.replace(
        alone,
        base=stretch * alone.base + base,
        rows=_stretched(alone.rows, stretch),
        tile_seconds=stretch * alone.tile_seconds,
        sampled=_stretched(alone.sampled, stretch, token),
        pair=stretch * alone.pair,
        context=stretch * alone.context,
        decode=stretch * alone.decode,
        chunk=stretch * alone.chunk,
        ways=ways,
    )
    every = [Measured(step.work, (step.seconds,)) for step in steps]
    return msgspec.structs.replace(model, ratios=fit.ratios(model, every))


def _stretched(curve: Curve, by: float, more: float = 0.0) -> Curve:
    """`more`: seconds for each of its size."""
    return Curve(
        curve.at,
        tuple(by * seconds + more * size for size, seconds in zip(curve.at, curve.seconds, strict=True)),
    )


def way(clients: Sequence[float], schedulers: Sequence[float | None]) -> float:
    """Seconds to the scheduler and back that a client's TTFT has in it, beside the scheduler's own. Medians.

    Both in the order of the requests. Raises StatisticsError for none.
    """
    return median(
        max(client - own, 0.0) for client, own in zip(clients, schedulers, strict=False) if own is not None
    )
