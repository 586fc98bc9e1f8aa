"""A made-up result of `pillion bench load` as a report."""

from pathlib import Path
from typing import Any

from pillion.ops.bench.ceilings import Ceilings
from pillion.ops.bench.load_report import report
from pillion.ops.report import Points, read, write
from pillion.ops.report.compare import compared


def server(url: str, slower: float = 1.0) -> dict[str, Any]:
    gaps = {"median": 20.0 * slower, "p99": 50.0 * slower, "worst": 60.0, "coalesced_share": 0.0}
    of_a = {"decode_tokens_per_s": 50 / slower, "ttft_s": 0.1, "gap_ms": gaps}
    first = {"executor": {"step_share": 0.8, "parts_s": {"head": 1.5}}, "floor": {"reached_in_steps": 0.5}}
    during = {"median": 40.0, "p99": 90.0, "worst": 95.0, "coalesced_share": 0.0}
    of_g = {"good_share": 0.5, "ttft_s": {"p90": 3.0}, "gap_p99_ms": {"worst": 120.0}}
    of_d = {"worst_gap_ms": 95.0, "gap_during_ms": during, "ttft_s": [0.5, 0.6, 0.7]}
    return {
        "url": url,
        "model": "demo",
        "quantization": "none",
        "notes": ["one"] if slower > 1 else [],
        "cases": {"A": [of_a | first, of_a | {"decode_tokens_per_s": 51.0}], "D": [of_d], "G": [of_g]},
    }


def result(*servers: dict[str, Any]) -> dict[str, Any]:
    return {"seed": 7, "threads": 2, "ceilings": [Ceilings(3e11, 9e11, 2e10)] * 2, "servers": list(servers)}


def test_servers_and_repeats_have_a_row_each(tmp_path: Path) -> None:
    made = report(result(server("http://a"), server("http://b", 2.0)))
    write(made, tmp_path / "load")
    assert read(tmp_path / "load") == made
    tables = {table.title: table for table in made.tables}
    ours = tables["A: one stream, 64 in, 128 out"]
    assert [row[0] for row in ours.rows] == [
        f"http://{name}, repeat {number}" for name in "ab" for number in (1, 2)
    ]
    at = ours.columns.index("decode tokens/s")
    assert [row[at] for row in ours.rows] == [50, 51, 25, 51]
    inside = tables["A: one stream, 64 in, 128 out, inside the server"]
    part = inside.columns.index("parts of steps, s: head")
    assert [row[part] for row in inside.rows] == [1.5, None, 1.5, None]
    late = tables["D: 8 streams, 3 long prompts arrive"]
    assert late.rows[0][late.columns.index("TTFT of the long prompts, s: 3")] == 0.7
    assert tables["The machine's ceilings, in the order of their measurement"].rows[1] == ["2", 300, 900, 20]
    assert made.notes == ["http://b: one"]
    assert made.raw["servers"][0]["cases"]["D"][0]["worst_gap_ms"] == 95


def test_gaps_are_drawn_by_server_with_the_case_beside_each() -> None:
    made = report(result(server("http://a"), server("http://b", 2.0)))
    gaps, targets, inside = made.plots
    assert isinstance(gaps, Points) and isinstance(targets, Points) and isinstance(inside, Points)
    assert [series.labels for series in gaps.series] == [["A", "A", "D"]] * 2
    assert gaps.series[1].points == [(0.04, 0.1), (0.04, 0.1), (0.04, 0.09)]
    assert targets.series[0].points == [(3.0, 0.12)]
    assert [(mark.axis, mark.value) for mark in targets.marks] == [("x", 2.0), ("y", 0.15)]
    assert inside.series[0].points == [(0.8, 0.5)]


def test_two_runs_of_one_server_can_be_compared() -> None:
    before, after = (report(result(server(f"http://{name}"))) for name in "ab")
    assert [(one.name, one.values, one.better) for one in before.summary[:2]] == [
        ("A: decode tokens/s", [50, 51], "higher"),
        ("A: TTFT, s", [0.1, 0.1], "lower"),
    ]
    assert [row[5] for row in compared(before, after).tables[0].rows[:2]] == ["no clear difference"] * 2
