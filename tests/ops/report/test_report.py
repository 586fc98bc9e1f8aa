"""A report's files hold the same, the page needs nothing else, and two are compared."""

import csv
import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from pillion.ops.cli import main
from pillion.ops.report import (
    Areas,
    Axis,
    Bars,
    Figure,
    Lines,
    NoReport,
    Points,
    Report,
    Series,
    Table,
    read,
    tell,
    write,
)
from pillion.ops.report.compare import compared
from pillion.ops.report.words import NONE, figure, quantity

CURVE = [(0.1, 0.5), (0.2, 1.0)]


def report(goodput: list[float] | None = None, **changes: Any) -> Report:
    values: dict[str, Any] = {
        "title": "Replay <of> chats",
        "provenance": {"command": "pillion bench traffic", "slo": {"ttft": 3.0}, "urls": ["a", "b"]},
        "summary": [
            Figure("goodput", goodput or [1.9, 2.0, 2.1], "requests/s", "higher"),
            Figure("P99 TBT", [0.15], "s", "lower"),
        ],
        "tables": [
            Table("By rate", ["", "sent", "TTFT"], [["2/s", 600, 0.35], ["4/s", 0, None]], ["", "", "s"])
        ],
        "plots": [
            Lines("TBT", Axis("", "s", "log"), Axis("", "", "tail"), [Series("2/s", CURVE)]),
            Points("front", Axis("a"), Axis("b"), [Series("x", [(1.0, 2.0)])]),
            Areas("steps", Axis("time", "s"), Axis("tokens"), ["decode"], [(0.0, [5.0])]),
            Bars("chunks", Axis("tokens"), Axis("chunks"), [(0.0, 64.0, 7.0)]),
        ],
        "notes": ["tokens came together & more"],
        "definitions": {"TBT": "gap between tokens"},
        "raw": {"requests": [1, 2]},
    }  # fmt: skip
    return Report(**(values | changes))


class Outside(HTMLParser):
    """What a page would load, and whether it closes what it opens."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[tuple[str, str | None]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [(tag, value) for name, value in attrs if name in ("src", "href", "srcset", "onload")]
        if tag == "script":
            self.loads.append((tag, None))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [(tag, value) for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_files_hold_the_same(tmp_path: Path) -> None:
    made = write(report(), tmp_path / "deep" / "chats.v1.html")
    assert [path.name for path in made] == ["chats.v1.html", "chats.v1.json", "chats.v1.csv"]
    assert read(made[0]) == read(made[1]) == read(tmp_path / "deep" / "chats.v1") == report()
    rows = list(csv.DictReader(io.StringIO(made[2].read_text())))
    told = [tuple(row.values()) for row in rows]
    for row in (
        ("summary", "goodput", "2", "requests/s", "2.0"),
        ("table", "By rate", "4/s", "TTFT", ""),
        ("plot", "TBT", "0.2", "2/s", "1.0"),
        ("plot", "steps", "0.0", "decode", "5.0"),
        ("plot", "chunks", "0.0", "to 64", "7.0"),
    ):
        assert row in told
    assert len(told) == 4 + 4 + 5


def test_the_page_needs_nothing_else_and_closes_what_it_opens(tmp_path: Path) -> None:
    text = write(report(), tmp_path / "chats")[0].read_text()
    page = Outside()
    page.feed(text)
    assert (page.loads, page.open) == ([], [])
    assert "url(" not in text and "@import" not in text and "default-src 'none'" in text
    assert "Replay &lt;of&gt; chats" in text and "came together &amp; more" in text and "<of>" not in text
    assert "prefers-color-scheme: dark" in text and "@media print" in text
    for said in ("gap between tokens", "350 ms", NONE, "± 0.25 requests/s", "ttft 3.0", "a, b"):
        assert said in text
    assert set(re.findall(r"https?://[^\"' <]+", text)) == set()


def test_the_terminal_shows_figures_tables_notes_and_files(tmp_path: Path) -> None:
    console = Console(file=io.StringIO())
    tell(report(), write(report(), tmp_path / "chats"), console)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    for part in (
        "Replay <of> chats",
        "2 ± 0.25 requests/s",
        "By rate",
        "350 ms",
        "! tokens came",
        "chats.csv",
    ):
        assert part in said


def test_a_terminal_too_narrow_for_columns_gets_sentences_and_no_broken_word() -> None:
    table = Table("Tried", ["", *(f"number {place}" for place in range(9))], [["2/s", *[123456] * 9]])
    said = {}
    for width in (60, 200):
        console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
        tell(report(tables=[table]), console=console)
        said[width] = console.file.getvalue()  # type: ignore[attr-defined]
    assert "2/s, number 0 123,456, number 1 123,456" in said[60].replace("\n", " ")
    assert re.search(r"2/s( +123,456){9}", said[200])
    wide = Console(file=io.StringIO())
    tell(report(tables=[Table("Tried", ["", "why"], [["2/s", "a reason " * 15]])]), console=wide)
    assert ("a reason " * 15).rstrip() in wide.file.getvalue()  # type: ignore[attr-defined]


def test_numbers_are_short_and_have_their_unit() -> None:
    assert [quantity(value, "s") for value in (0.0, 0.000_25, 0.0421, 3.14159, 1234.5)] == [
        "0 s", "250 µs", "42.1 ms", "3.14 s", "1,234 s",
    ]  # fmt: skip
    assert quantity(0.1234, "share") == "12.3 %" and quantity(None, "s") == NONE and quantity("x", "s") == "x"
    assert quantity(1_234_567) == "1,234,567" and quantity(float("inf")) == "inf"
    assert figure(Figure("one", [0.05], "s")) == "50 ms" and figure(Figure("none", [])) == NONE


def test_differences_have_a_verdict_where_repeats_allow_one() -> None:
    def verdicts(before: list[float], after: list[float]) -> tuple[str, ...]:
        (told,) = compared(report(before), report(after)).tables
        return tuple(told.rows[0][3:])  # type: ignore[arg-type]

    assert verdicts([2.0, 2.1, 1.9], [3.0, 3.1, 2.9]) == ("+1 ± 0.23 requests/s", "+50.0 %", "better")
    assert verdicts([3.0, 3.1, 2.9], [2.0, 2.1, 1.9])[2] == "worse"
    assert verdicts([2.0, 2.5, 1.5], [2.1, 2.6, 1.6])[2] == "no clear difference"
    assert verdicts([2.0], [3.0]) == ("+1 requests/s", "+50.0 %", "")
    notes = compared(report([2.0]), report([3.0])).notes
    assert notes[0].startswith("without repeats") and notes[1] == "A: tokens came together & more"


def test_curves_of_both_are_drawn_together_and_what_one_lacks_is_told() -> None:
    both = compared(report(), report(summary=[Figure("capacity", [4.0])]))
    assert [row[1:3] for row in both.tables[0].rows][1:] == [["150 ms", NONE], [NONE, "4"]]
    assert [plot.title for plot in both.plots] == ["TBT", "front"]
    assert [series.name for series in both.plots[0].series] == ["A 2/s", "B 2/s"]  # type: ignore[union-attr]


def test_what_was_asked_differently_is_told_and_shares_differ_by_points() -> None:
    def made(share: float, **provenance: Any) -> Report:
        asked = {
            "command": "pillion simulate --rate 2 --rate 3 --learn --output a",
            "load": {"rate": 2.0, "stages": 1},
            "date": share,
        }
        return report(summary=[Figure("met", [share], "share")], provenance=asked | provenance)

    other = "pillion simulate --rate=2 --rate 4 -pp 4 --output b"
    after = made(0.25, command=other, load={"rate": 2.0, "stages": 4}, targets="1 s")
    both = compared(made(0.5), after, ("one", "two"))
    assert both.title == "Replay <of> chats: one (A) beside two (B)"
    assert both.tables[0].rows == [["met", "50 %", "25 %", "-25 points", "-50.0 %", ""]]
    assert both.tables[1].rows == [
        ["command: --rate", "2, 3", "2, 4"],
        ["command: --learn", "given", NONE],
        ["load: stages", "1", "4"],
        ["command: -pp", NONE, "4"],
        ["targets", NONE, "1 s"],
    ]


def test_compare_shows_and_writes(tmp_path: Path) -> None:
    write(report([2.0, 2.1, 1.9]), tmp_path / "a")
    write(report([3.0, 3.1, 2.9]), tmp_path / "b")
    arguments = [str(tmp_path / "a.json"), str(tmp_path / "b.html"), "--output", str(tmp_path / "ab.html")]
    done = CliRunner().invoke(main, ["compare", *arguments])
    assert done.exit_code == 0, done.output
    assert "better" in done.output and read(tmp_path / "ab").raw == {"clear": ["goodput"]}
    (tmp_path / "c.json").write_text("{}")
    for wrong, said in (("none.json", "cannot read the report"), ("c.json", "is no report")):
        failed = CliRunner().invoke(main, ["compare", str(tmp_path / "a.json"), str(tmp_path / wrong)])
        assert failed.exit_code == 1 and said in failed.output and failed.output.startswith("pillion: ")
    with pytest.raises(NoReport, match="cannot write"):
        write(report(), tmp_path / "a.json" / "deeper")
