"""A search as a report: the capacity, and each probe as its evidence."""

from collections.abc import Callable, Sequence
from typing import Any

from pillion.ops.measure import DEFINITIONS
from pillion.ops.report import Axis, Figure, Lines, Mark, Plot, Report, Series, Table
from pillion.ops.report.runs import Run, figures, plots, tables

from .find import Asked, Probe
from .search import UNSERVED, Targets

_RATE = Axis("rate", "requests/s", "log")


def report(
    title: str,
    provenance: dict[str, Any],
    capacities: Sequence[float],
    probes: Sequence[Probe],
    asked: Asked,
    notes: Sequence[str] = (),
) -> Report:
    """`capacities`: one of each repeat. The figures beside it are of the runs at capacity."""
    ours = [
        next(p for p in reversed(probes) if p.repeat == repeat and p.rate == rate and not p.missed)
        for repeat, rate in enumerate(capacities)
    ]
    run = _run("at capacity", ours)
    distributions = [_run(f"{probe.rate:.3g}/s", [probe]) for probe in _neighbours(probes, ours[0])]
    if all(not probe.missed for probe in probes):
        notes = [*notes, "no rate that was tried was too much: give a higher --start or more --probes"]
    return Report(
        title=title,
        provenance=provenance,
        summary=[Figure("capacity", [*capacities], "/s", "higher"), *figures([run])],
        tables=[_evidence(probes), *tables([run])],
        plots=[*_curves(probes, asked.targets), *plots(distributions, asked.slo)[:2], *ours[0].tried.plots],
        notes=list(dict.fromkeys((*notes, *(note for probe in ours for note in probe.tried.notes)))),
        definitions={"capacity": _definition(asked.targets)} | DEFINITIONS,
        raw={"capacities": [*capacities], "at_capacity": run.raw()},
    )


def _definition(targets: Targets) -> str:
    return (
        f"Highest rate that was tried and kept P99 TBT within {targets.tbt:g} s and the median scheduling "
        f"delay within {targets.delay:g} s, with all but {UNSERVED:.0%} of the requests finished. Each rate "
        "has the same requests in the same order. Where nobody tells scheduling delays the median TTFT, "
        "which is never less, stands for them."
    )


def _run(name: str, probes: Sequence[Probe]) -> Run:
    tried = [probe.tried for probe in probes]
    return Run(name, [(one.tally, one.seconds) for one in tried], [one.delay for one in tried])


def _neighbours(probes: Sequence[Probe], at: Probe) -> list[Probe]:
    """Of its repeat: the next rate below, the capacity itself, and the next above."""
    ours = sorted((probe for probe in probes if probe.repeat == at.repeat), key=lambda probe: probe.rate)
    below = [probe for probe in ours if probe.rate < at.rate][-1:]
    above = [probe for probe in ours if probe.rate > at.rate][:1]
    return [*below, at, *above]


def _evidence(probes: Sequence[Probe]) -> Table:
    counts = ("sent", "finished", "rejected", "failed", "unfinished")
    rows: list[list[Any]] = []
    for probe in probes:
        (told,) = _run("", [probe]).summaries()
        tails = [(told[key] or {}).get(quantile) for key, quantile in _TAILS]
        rows.append(
            [
                f"{probe.repeat + 1}", probe.rate, *(told[name] for name in counts), *tails,
                told["goodput_per_s"], probe.missed or "kept",
            ]
        )  # fmt: skip
    return Table(
        "What was tried",
        ["search", "rate", *counts, "TBT P99", "delay P50", "TTFT P50", "goodput", "targets"],
        rows,
        ["", "/s", *("" for _ in counts), "s", "s", "s", "/s", ""],
    )


_TAILS = (("tbt_s", "p99"), ("delay_s", "median"), ("ttft_s", "median"))


def _curves(probes: Sequence[Probe], targets: Targets) -> list[Plot]:
    def curve(value: Callable[[dict[str, Any]], float | None]) -> list[Series]:
        found: dict[int, list[tuple[float, float]]] = {}
        for probe in sorted(probes, key=lambda probe: probe.rate):
            if (seen := _run("", [probe]).mean(value)) is not None:
                found.setdefault(probe.repeat, []).append((probe.rate, seen))
        several = len(found) > 1
        return [
            Series(f"search {repeat + 1}" if several else "", pairs)
            for repeat, pairs in sorted(found.items())
        ]

    def at(key: str, quantile: str) -> Callable[[dict[str, Any]], float | None]:
        return lambda told: told[key] and told[key][quantile]

    tbt = Mark("y", targets.tbt, "target")
    delay = Mark("y", targets.delay, "target")
    return [
        Lines("P99 TBT by rate", _RATE, Axis("TBT P99", "s"), curve(at("tbt_s", "p99")), [tbt]),
        Lines(
            "Median scheduling delay by rate",
            *(_RATE, Axis("scheduling delay P50", "s"), curve(at("delay_s", "median")), [delay]),
        ),
        Lines(
            "Goodput by rate",
            *(_RATE, Axis("goodput", "requests/s"), curve(lambda told: told["goodput_per_s"])),
        ),
    ]
