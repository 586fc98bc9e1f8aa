"""The highest rate that keeps the targets, by trying few: pure, whoever does the trying."""

import math
from collections.abc import Generator
from dataclasses import dataclass

from pillion.ops.measure import Tally
from pillion.ops.report.words import quantity

UNSERVED = 0.01
"""Share of the requests that may end otherwise than finished: what refuses much can keep any target."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Seconds: the 99th percentile of all gaps, and the median scheduling delay."""

    tbt: float
    delay: float = 2.0


def search(start: float, tolerance: float, most: int) -> Generator[float, bool, float | None]:
    """Yields rates to try and is sent whether each keeps the targets; returns the highest that did.

    Doubles or halves until it is between two, then takes their geometric mean, until they are within
    `tolerance` of each other or `most` were tried.
    """
    low = high = None
    rate = start
    for _ in range(most):
        if (yield rate):
            low = rate
        else:
            high = rate
        if low and high and high / low <= 1 + tolerance:
            break
        rate = _between(low, high)
    return low


def _between(low: float | None, high: float | None) -> float:
    """Raises ValueError where neither is known."""
    if low and high:
        return math.sqrt(low * high)
    if low:
        return low * 2
    if high:
        return high / 2
    raise ValueError("nothing was tried")


def missed(tally: Tally, delay: float | None, targets: Targets) -> str:
    """Why a run did not keep the targets; empty where it did.

    `delay`: the median scheduling delay where the tally has none. Without both the median TTFT, which is
    never less, stands for it.
    """
    told = tally.summary(1.0)
    why = []
    if (unserved := told["sent"] - told["finished"]) > UNSERVED * told["sent"]:
        why.append(f"{quantity(unserved / told['sent'], 'share')} not finished")
    if told["tbt_s"] and told["tbt_s"]["p99"] > targets.tbt:
        why.append(f"P99 TBT {quantity(told['tbt_s']['p99'], 's')}")
    name = "scheduling delay"
    if told["delay_s"]:
        delay = told["delay_s"]["median"]
    elif delay is None and told["ttft_s"]:
        name, delay = "TTFT", told["ttft_s"]["median"]
    if delay is not None and delay > targets.delay:
        why.append(f"median {name} {quantity(delay, 's')}")
    return ", ".join(why)
