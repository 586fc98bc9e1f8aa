"""A raw result of the gateway's benchmark as a report: one row for each case."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pillion.ops.report import Axis, Figure, Lines, Points, Report, Series, Table
from pillion.ops.report.model import Cell
from pillion.ops.report.origin import origin
from pillion.words import counted

from .report import found

Columns = Sequence[tuple[str, str, float, str]]
"""A column's name, where its value is in a case's result, what to multiply that with, and the unit then."""

_REQUESTS: Columns = (
    ("requests/s", "requests_per_s", 1, ""),
    ("gateway CPU a request", "gateway_ms_per_request", 1e-3, "s"),
    ("request P50", "request_ms.median", 1e-3, "s"),
    ("request P99", "request_ms.p99", 1e-3, "s"),
)
_STREAMS: Columns = (
    ("tokens/s", "tokens_per_s", 1, ""),
    ("gateway CPU a token", "gateway_us_per_token", 1e-6, "s"),
    ("TBT less the step P50", "late_ms.median", 1e-3, "s"),
    ("TBT less the step P99", "late_ms.p99", 1e-3, "s"),
    ("came with the one before", "coalesced_share", 1, "share"),
    ("TTFT P50", "ttft_ms.median", 1e-3, "s"),
    ("TTFT P99", "ttft_ms.p99", 1e-3, "s"),
)
DEFINITIONS = {
    "case": "So many streams at once, whose executor takes so long for a step and computes nothing. "
    "Requests: completions of one token, not streamed, by clients in a closed loop.",
    "gateway CPU": "Of the gateway's process while all streams ran, over the tokens that came then, or over "
    "the requests.",
    "TBT less the step": "A token's gap to the one before, at the client, less the step: how late it is. "
    "Where many come with the one before it says little.",
    "came with the one before": "Tokens that one event brought with their predecessor, of all.",
    "TTFT": "From sending to the first token. Streams begin 4 ms apart.",
    "cores": "CPU time of each process over the time of the case. Others: all else on the machine.",
    "at the limit": "The process that filled a core; machine: all cores together; none: nobody.",
}


def report(result: Mapping[str, Any]) -> Report:
    """`result`: as the benchmark keeps it."""
    short, streams = result["requests"], dict(_streams(result))
    cases = {f"{short['at_a_time']} requests at a time": short, **streams}
    return Report(
        title="What the gateway costs and adds",
        provenance=origin(**result["options"], cpus=result["cpus"])
        | {"command": "python -m pillion.ops.bench.gateway"},
        summary=list(_figures(cases)),
        tables=[
            _table("Requests", {name: part for name, part in cases.items() if part is short}, _REQUESTS),
            _table("Streams", streams, _STREAMS),
            _cores(cases),
        ],
        plots=[_late(streams), _costs(streams)],
        definitions=DEFINITIONS,
        raw=dict(result),
    )


def _streams(result: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for one in result["paced"]:
        yield f"{counted(one['streams'], 'stream')}, step {one['step_ms']:g} ms", one
    yield f"{counted(result['saturated']['streams'], 'stream')}, no step time", result["saturated"]


def _figures(cases: Mapping[str, Mapping[str, Any]]) -> Iterator[Figure]:
    for name, part in cases.items():
        if "requests_per_s" in part:
            yield Figure(
                f"gateway CPU a request, {name}", [part["gateway_ms_per_request"] / 1e3], "s", "lower"
            )
            yield Figure(f"requests/s, {name}", [part["requests_per_s"]], "", "higher")
        else:
            yield Figure(f"gateway CPU a token, {name}", [part["gateway_us_per_token"] / 1e6], "s", "lower")
            yield Figure(f"tokens/s, {name}", [part["tokens_per_s"]], "", "higher")
            yield Figure(f"TBT less the step P99, {name}", [part["late_ms"]["p99"] / 1e3], "s", "lower")


def _table(title: str, cases: Mapping[str, Mapping[str, Any]], columns: Columns) -> Table:
    rows: list[list[Cell]] = [
        [name, *(found(part, path) * by for _, path, by, _ in columns)] for name, part in cases.items()
    ]
    return Table(title, ["", *(name for name, *_ in columns)], rows, ["", *(unit for *_, unit in columns)])


def _cores(cases: Mapping[str, Mapping[str, Any]]) -> Table:
    processes = list(dict.fromkeys(name for part in cases.values() for name in part["cores"]))
    rows: list[list[Cell]] = [
        [name, *(part["cores"].get(each) for each in processes), part["limit"]]
        for name, part in cases.items()
    ]
    return Table("Cores used", ["", *processes, "at the limit"], rows)


def _late(streams: Mapping[str, Mapping[str, Any]]) -> Lines:
    series = []
    for name, part in streams.items():
        late, last = part["late_ms"], 1 - 1 / max(part["tokens"], 2)
        ends = ((late["median"], 0.5), (late["p99"], 0.99), (late["worst"], last))
        series.append(Series(name, [(ms / 1e3, share) for ms, share in ends if ms > 0]))
    return Lines(
        "How late tokens are", Axis("TBT less the step", "s", "log"), Axis("share of tokens", "", "tail"),
        series,
        note="P50, P99 and the worst, but for those that are not late at all.",
    )  # fmt: skip


def _costs(streams: Mapping[str, Mapping[str, Any]]) -> Points:
    series = [
        Series(name, [(part["tokens_per_s"], part["gateway_us_per_token"] / 1e6)])
        for name, part in streams.items()
    ]
    return Points(
        "What a token costs", Axis("tokens/s", "", "log"), Axis("gateway CPU a token", "s", "log"), series,
        best=("high", "low"),
    )  # fmt: skip
