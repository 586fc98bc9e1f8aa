"""A raw result of `pillion bench load` as a report: one row for each server and repeat."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from pillion.ops.report import Axis, Figure, Mark, Plot, Points, Report, Series, Table
from pillion.ops.report.model import Cell
from pillion.ops.report.origin import origin

from .cases import Goodput
from .report import INSIDE, ROWS, TITLES, found

G = Goodput()
_HIGHER = ("decode_tokens_per_s", "total_tokens_per_s", "good_share", "floor.reached")
_LOWER = (
    *("ttft_s", "ttft_s.median", "ttft_s.p90", "gap_ms.p99", "gap_p99_ms.worst"),
    *("worst_gap_ms", "worst_gap_over_median_before"),
)
DEFINITIONS = {
    "gap": "Between two tokens of a stream, one after the other, at the client (TBT). P50, P99 and worst are "
    "of all gaps of a run; of G each request's P99, then the worst of them.",
    "TTFT": "From sending a request to its first token at the client; of G from when it was due.",
    "total tokens/s": "Of prompts and outputs, over the time from the first request to the end of the last.",
    "decode tokens/s": "Tokens behind the first, over the time from the first token to the last.",
    "the same over the median before": "D's worst gap while the long prompts are there, over the median gap "
    "before they came. Over idle: their TTFT over that of as long ones at the idle server.",
    "good share": f"Of G's requests: TTFT within {G.ttft:g} s and P99 gap within {G.tbt * 1000:g} ms. "
    "Missed: those over one target.",
    "floor": "The least time in which the machine computes the arithmetic of the case's steps or reads their "
    "bytes, whichever is longer, by the ceilings measured just before and after.",
    "floor over time": "1 is as quick as the machine allows. In steps: over the executor's time in steps.",
    "time in steps": "The executor's, over the time of the case.",
    "CPU": "Of each process of the stack while the case ran. Outside kernels, at least: these take no more "
    "than the executor used, nor than all its threads during forwards and logits.",
}
Reach = Iterable[tuple[str, str]]


def report(result: Mapping[str, Any]) -> Report:
    """`result`: as `load.measure` gives it, or its JSON."""
    raw: dict[str, Any] = msgspec.to_builtins(result)
    servers = raw["servers"]
    return Report(
        title=f"{_models(servers)} under fixed loads",
        provenance=origin(
            servers={server["url"]: _what(server) for server in servers},
            seed=raw["seed"],
            **{"threads of the ceilings": raw["threads"]},
        ),
        summary=list(_figures(servers)),
        tables=[*_tables(servers), *_ceilings(raw["ceilings"])],
        plots=list(_plots(servers)),
        notes=[f"{server['url']}: {note}" for server in servers for note in server["notes"]],
        definitions=DEFINITIONS,
        raw=raw,
    )


def _models(servers: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(server["model"] for server in servers))


def _what(server: Mapping[str, Any]) -> str:
    return f"{server['model']}, weights {server['quantization'] or 'unknown'}"


def _figures(servers: Sequence[Mapping[str, Any]]) -> Iterator[Figure]:
    """What `pillion compare` puts side by side: without the URL where there is but one."""
    for server in servers:
        behind = f", {server['url']}" if len(servers) > 1 else ""
        for case, results in server["cases"].items():
            for label, path in (*ROWS[case], *INSIDE):
                values = [found(each, path) for each in results]
                values = [value for value in values if isinstance(value, int | float)]
                if values and path in (*_HIGHER, *_LOWER):
                    name = f"{case}: {label}{behind}"
                    yield Figure(name, values, better="higher" if path in _HIGHER else "lower")


def _tables(servers: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    for case in servers[0]["cases"]:
        runs = [
            (server["url"] + (f", repeat {number}" if len(server["cases"][case]) > 1 else ""), result)
            for server in servers
            for number, result in enumerate(server["cases"][case], 1)
        ]
        for more, reach in (("", ROWS[case]), (", inside the server", INSIDE)):
            columns = list(_columns([result for _, result in runs], reach))
            if columns:
                rows = [[url, *(cells[row] for _, cells in columns)] for row, (url, _) in enumerate(runs)]
                yield Table(f"{case}: {TITLES[case]}{more}", ["", *(name for name, _ in columns)], rows)


def _columns(results: Sequence[Mapping[str, Any]], reach: Reach) -> Iterator[tuple[str, list[Cell]]]:
    """Of what some result has; a value of several parts has a column for each."""
    for label, path in reach:
        values = [_parts(found(each, path)) for each in results]
        for part in dict.fromkeys(name for value in values for name in value):
            yield f"{label}: {part}" if part else label, [value.get(part) for value in values]


def _parts(value: Any) -> dict[str, Cell]:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list):
        return {str(number): each for number, each in enumerate(value, 1)}
    return {} if value is None else {"": value}


def _ceilings(each: Sequence[Mapping[str, float]]) -> Iterator[Table]:
    if each:
        rows: list[list[Cell]] = [
            [str(number), *(one[name] / 1e9 for name in ("flops_per_s", "int8_flops_per_s", "bytes_per_s"))]
            for number, one in enumerate(each, 1)
        ]
        yield Table(
            "The machine's ceilings, in the order of their measurement",
            ["", "bfloat16, GFLOP/s", "int8, GFLOP/s", "memory, GB/s"],
            rows,
            note="Before the first case and behind each.",
        )


# --- plots -----------------------------------------------------------------------------------------


def _plots(servers: Sequence[Mapping[str, Any]]) -> Iterator[Plot]:
    """Those that have a point."""
    for plot in (_gaps(servers), _rates(servers), _targets(servers), _inside(servers)):
        if any(series.points for series in plot.series):
            yield plot


def _gaps(servers: Sequence[Mapping[str, Any]]) -> Points:
    return Points(
        "Gaps: how far the tail is from the middle",
        Axis("gap P50", "s", "log"), Axis("gap P99", "s", "log"),
        [_series(server, ("gap_ms", "gap_during_ms"), "median", "p99", 1e-3, 1e-3) for server in servers],
        best=("low", "low"), marks=[Mark("xy", 1.0, "all gaps alike")],
        note="A point is a run of the case beside it; of D only the gaps while long prompts are there.",
    )  # fmt: skip


def _rates(servers: Sequence[Mapping[str, Any]]) -> Points:
    return Points(
        "First tokens and throughput",
        Axis("TTFT median", "s", "log"), Axis("total tokens/s"),
        [_series(server, ("",), "ttft_s.median", "total_tokens_per_s") for server in servers],
        best=("low", "high"),
    )  # fmt: skip


def _targets(servers: Sequence[Mapping[str, Any]]) -> Points:
    return Points(
        "G beside its targets",
        Axis("TTFT P90", "s", "log"), Axis("worst request's gap P99", "s", "log"),
        [_series(server, ("",), "ttft_s.p90", "gap_p99_ms.worst", 1.0, 1e-3) for server in servers],
        marks=[Mark("x", G.ttft, "target"), Mark("y", G.tbt, "target")],
    )  # fmt: skip


def _inside(servers: Sequence[Mapping[str, Any]]) -> Points:
    return Points(
        "Where the time goes",
        Axis("share of time in steps", "share"), Axis("floor over time in steps"),
        [_series(server, ("",), "executor.step_share", "floor.reached_in_steps") for server in servers],
        best=("high", "high"),
        note="To the right steps follow one another sooner; higher up they come nearer to the floor.",
    )  # fmt: skip


def _series(
    server: Mapping[str, Any], above: Sequence[str], x: str, y: str, by_x: float = 1.0, by_y: float = 1.0
) -> Series:
    """A server's runs that have both, and their cases beside them."""
    points, labels = [], []
    for case, results in server["cases"].items():
        for result in results:
            for name in above:
                a, b = (found(result, f"{name}.{path}".lstrip(".")) for path in (x, y))
                if a and b:
                    points.append((a * by_x, b * by_y))
                    labels.append(case)
    return Series(server["url"], points, labels)
