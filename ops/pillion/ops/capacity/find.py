"""Searches, once for each repeat, and tells of every probe."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import click

from pillion.ops.measure import Slo, Tally
from pillion.ops.report import Plot

from .search import Targets, missed, search


class NoCapacity(Exception):
    """No rate keeps the targets. One line that says what was tried."""


@dataclass(frozen=True, slots=True)
class Asked:
    """How to search, and for what. Rates are requests a second, times seconds."""

    targets: Targets
    slo: Slo  # of goodput
    start: float = 1.0
    tolerance: float = 0.05
    probes: int = 14  # most of one search
    repeats: int = 1  # searches with other requests
    drain: float = 60.0  # after the last is due, until which all may end


@dataclass(frozen=True, slots=True)
class Tried:
    """What one run at a rate brought; `notes` and `plots` are for the report."""

    tally: Tally
    seconds: float  # in which requests were due
    delay: float | None = None  # median scheduling delay, where the tally has none
    notes: tuple[str, ...] = ()
    plots: tuple[Plot, ...] = ()


@dataclass(frozen=True, slots=True)
class Probe:
    repeat: int
    rate: float
    tried: Tried
    missed: str  # why the targets were not kept; empty: they were


Try = Callable[[float, int, int], Awaitable[Tried]]
"""Runs at a rate, for a repeat; the last is the run's number, which no other has."""


async def find(attempt: Try, asked: Asked) -> tuple[list[float], list[Probe]]:
    """The capacity of each repeat, requests a second, and all probes. Raises NoCapacity."""
    capacities: list[float] = []
    probes: list[Probe] = []
    for repeat in range(asked.repeats):
        rates = search(capacities[-1] if capacities else asked.start, asked.tolerance, asked.probes)
        rate = next(rates)
        while True:
            tried = await attempt(rate, repeat, len(probes))
            probe = Probe(repeat, rate, tried, missed(tried.tally, tried.delay, asked.targets))
            probes.append(probe)
            click.echo(f"{rate:.4g} requests/s: {probe.missed or 'kept'}", err=True)
            try:
                rate = rates.send(not probe.missed)
            except StopIteration as over:
                if over.value is None:
                    raise NoCapacity(
                        f"no rate from {rate:.3g} requests/s on keeps the targets: {probe.missed}; give "
                        "looser ones, or a lower --start"
                    ) from None
                capacities.append(over.value)
                break
    return capacities, probes
