"""What a report tells of runs under load, from their tallies: figures, tables and plots."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pillion.ops.measure import FAILED, FINISHED, UNFINISHED, Histogram, Slo, Tally, mean_of

from .model import Areas, Axis, Cell, Figure, Lines, Mark, Plot, Points, Series, Table

_PER_S = "/s"


@dataclass(frozen=True, slots=True)
class Run:
    """One load, run once or more: a tally of each time, and the seconds in which its requests were due.

    `delays`: median scheduling delays, where somebody else than the tallies knows them.
    """

    name: str
    repeats: Sequence[tuple[Tally, float]]
    delays: Sequence[float | None] = ()

    def summaries(self) -> list[dict[str, Any]]:
        """Of each repeat."""
        found = [tally.summary(seconds) for tally, seconds in self.repeats]
        for told, delay in zip(found, self.delays, strict=False):
            if told["delay_s"] is None and delay is not None:
                told["delay_s"] = {"median": delay}
        return found

    def each(self, value: Callable[[dict[str, Any]], float | None]) -> list[float]:
        """A figure of every repeat's summary; none of those that have none."""
        return [one for told in self.summaries() if (one := value(told)) is not None]

    def mean(self, value: Callable[[dict[str, Any]], float | None]) -> float | None:
        return mean_of(found)[0] if (found := self.each(value)) else None

    def histogram(self, name: str) -> Histogram:
        """Of all repeats together; `name` is a tally's."""
        whole = Histogram()
        for tally, _ in self.repeats:
            whole.update(getattr(tally, name))
        return whole

    def raw(self) -> dict[str, Any]:
        return {"name": self.name, "repeats": self.summaries()}


def _at(name: str, quantile: str) -> Callable[[dict[str, Any]], float | None]:
    return lambda told: told[name] and told[name][quantile]


_FIGURES: tuple[tuple[str, Callable[[dict[str, Any]], float | None], str, Any], ...] = (
    ("goodput", lambda told: told["goodput_per_s"], _PER_S, "higher"),
    ("SLO attained", lambda told: told["good_share"], "share", "higher"),
    ("TTFT median", _at("ttft_s", "median"), "s", "lower"),
    ("TTFT P99", _at("ttft_s", "p99"), "s", "lower"),
    ("TBT median", _at("tbt_s", "median"), "s", "lower"),
    ("TBT P99", _at("tbt_s", "p99"), "s", "lower"),
    ("TPOT median", _at("tpot_s", "median"), "s", "lower"),
    ("E2E median", _at("e2e_s", "median"), "s", "lower"),
    ("scheduling delay median", _at("delay_s", "median"), "s", "lower"),
    ("offered", lambda told: told["offered_per_s"], _PER_S, ""),
    ("output tokens/s", lambda told: told["output_tokens"] / told["seconds"], "", "higher"),
    ("rejected", lambda told: told["rejected"], "", "lower"),
    ("failed", lambda told: told["failed"], "", "lower"),
    ("unfinished", lambda told: told["unfinished"], "", "lower"),
)


def figures(runs: Sequence[Run]) -> list[Figure]:
    """All of a single run; of several the first two figures and the tails of each."""
    found = []
    for run in runs:
        for name, value, unit, better in _FIGURES:
            shown = len(runs) == 1 or name in ("goodput", "SLO attained", "TTFT P99", "TBT P99")
            if shown and (values := run.each(value)):
                found.append(
                    Figure(name if len(runs) == 1 else f"{name} at {run.name}", values, unit, better)
                )
    return found


def tables(runs: Sequence[Run]) -> list[Table]:
    """A row of each repeat, and their mean where there are several."""
    return [*_both(runs), *_refusals(runs)]


def _both(runs: Sequence[Run]) -> Iterator[Table]:
    counts = ("sent", FINISHED, "rejected", FAILED, UNFINISHED)
    ended = ("rejected", FAILED, UNFINISHED)
    rates = (("offered_per_s", "offered"), ("goodput_per_s", "goodput"), ("good_share", "SLO attained"))
    missed = (("missed_ttft", "missed TTFT"), ("missed_tbt", "missed TBT"))
    yield Table(
        "Requests",
        ["", *counts, *(name for _, name in (*rates, *missed))],
        _rows(runs, [_of(name) for name in (*counts, *(key for key, _ in (*rates, *missed)))]),
        ["", *("" for _ in counts), _PER_S, _PER_S, "share", "", ""],
        "Every request counts in the run in which it was due. Those that missed a target had finished.",
    )
    for title, latencies in _LATENCIES.items():
        yield Table(
            title,
            ["", *(f"{name} {_SHORT[quantile]}" for name, _, quantile in latencies), *ended],
            _rows(runs, [*(_at(key, quantile) for _, key, quantile in latencies), *map(_of, ended)]),
            ["", *("s" for _ in latencies), "", "", ""],
        )


_LATENCIES = {
    "Times of requests": (
        *(("TTFT", "ttft_s", each) for each in ("median", "p90", "p99")),
        *(("E2E", "e2e_s", each) for each in ("median", "p99")),
        ("scheduling delay", "delay_s", "median"),
    ),
    "Times of tokens": (
        *(("TBT", "tbt_s", each) for each in ("median", "p99", "p999", "worst")),
        *(("TPOT", "tpot_s", each) for each in ("median", "p99")),
    ),
}
"""What each table tells: a column's name, and where it is in a summary."""
_SHORT = {"median": "P50", "p90": "P90", "p99": "P99", "p999": "P99.9", "worst": "worst"}


def _of(name: str) -> Callable[[dict[str, Any]], float | None]:
    return lambda told: told[name]


def _rows(
    runs: Sequence[Run], values: Sequence[Callable[[dict[str, Any]], float | None]]
) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for run in runs:
        for repeat, told in enumerate(run.summaries(), 1):
            name = run.name if len(run.repeats) == 1 else f"{run.name}, repeat {repeat}"
            rows.append([name, *(value(told) for value in values)])
        if len(run.repeats) > 1:
            rows.append([f"{run.name}, mean", *(run.mean(value) for value in values)])
    return rows


def _refusals(runs: Sequence[Run]) -> Iterator[Table]:
    by_run = [sum((tally.results for tally, _ in run.repeats), Counter[str]()) for run in runs]
    codes = sorted({code for results in by_run for code in results} - {FINISHED, FAILED, UNFINISHED})
    if codes:
        rows: list[list[Cell]] = [
            [run.name, *(results[code] for code in codes)] for run, results in zip(runs, by_run, strict=True)
        ]
        yield Table("Rejected, by code", ["", *codes], rows)


# --- plots -----------------------------------------------------------------------------------------


def plots(runs: Sequence[Run], slo: Slo) -> list[Plot]:
    """How gaps and first tokens are distributed, how the runs went on, and of several how they compare."""
    found: list[Plot] = [
        _distribution(
            "Time between tokens",
            Axis("TBT", "s", "log"),
            "share of gaps",
            [Series(run.name, run.histogram("tbt").curve()) for run in runs],
            Mark("x", slo.tbt, "SLO"),
        ),
        _distribution(
            "Time to first token",
            Axis("TTFT", "s", "log"),
            "share of those that got one",
            [Series(run.name, run.histogram("ttft").curve()) for run in runs],
            Mark("x", slo.ttft, "SLO"),
        ),
    ]
    if len(runs) > 1:
        found += [_against_load(runs), *_fronts(runs)]
    return [*found, *(_over_time(run) for run in runs)]


def _distribution(title: str, x: Axis, of: str, series: list[Series], mark: Mark) -> Lines:
    apart = [Series(each.name, _from_a_hundredth(each.points)) for each in series]
    note = "Cumulative, its tail stretched: each line up leaves a tenth of the one below."
    return Lines(title, x, Axis(of, "", "tail"), apart, [mark], note)


def _from_a_hundredth(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Without the shortest, which would take most of a logarithmic axis."""
    return [pair for pair in points if pair[0] > 0 and pair[1] >= 0.01]


def _against_load(runs: Sequence[Run]) -> Plot:
    def curve(name: str) -> list[tuple[float, float]]:
        pairs = [(run.mean(_of("offered_per_s")), run.mean(_of(name))) for run in runs]
        return sorted((a, b) for a, b in pairs if a is not None and b is not None)

    names = (("goodput", "goodput_per_s"), ("finished", "finished_per_s"), ("offered", "offered_per_s"))
    series = [Series(shown, curve(name)) for shown, name in names]
    return Lines("Goodput against offered load", Axis("offered", "requests/s"), Axis("requests/s"), series)


def _fronts(runs: Sequence[Run]) -> Iterator[Plot]:
    for title, key in (("TTFT", "ttft_s"), ("TBT", "tbt_s")):
        known = [
            (run.name, (tail, good))
            for run in runs
            if (tail := run.mean(_at(key, "p99"))) is not None
            and (good := run.mean(_of("goodput_per_s"))) is not None
        ]
        series = Series("", [pair for _, pair in known], [name for name, _ in known])
        yield Points(
            *(f"Goodput against {title}", Axis(f"{title} P99", "s", "log"), Axis("goodput", "requests/s")),
            *([series], ("low", "high")),
        )


def _over_time(run: Run) -> Plot:
    """Of the first repeat."""
    tally, seconds = run.repeats[0]
    width = tally.windows.width
    rows = []
    for window in tally.windows.told():
        within = min(width, max(seconds - window["at"], 1e-9)) if window["at"] < seconds else width
        late = window[FINISHED] - window["good"]
        ends = (window["good"], late, window["rejected"], window[FAILED], window[UNFINISHED])
        rows.append((window["at"], [count / within for count in ends]))
    return Areas(
        f"What became of requests, {run.name}",
        Axis("time at which they were due", "s"),
        Axis("requests/s"),
        ["good", "finished late", "rejected", "failed", "unfinished"],
        rows,
    )
