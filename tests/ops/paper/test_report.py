"""The papers' tables as a report."""

from pathlib import Path

import msgspec

from pillion.ops.paper.report import pairs, report
from pillion.ops.paper.table import Table
from pillion.ops.report import Points, read, write

FIGURES = Path(__file__).parents[3] / "docs" / "figures" / "paper.json"


def table(columns: tuple[str, ...], *rows: tuple[str | float | None, ...]) -> Table:
    return Table("one", "One", "Set up.", columns, rows, "Little.")


def test_a_figure_is_beside_ours_of_the_same_name_or_the_next() -> None:
    columns = ("batch", "share, paper", "ms, ours", "share, ours", "bubbles, paper", "ours")
    made = pairs(
        table(columns, (1.0, 2.0, 30.0, 4.0, "1 / 0.5", "3 / 0.25"), (2.0, None, 31.0, 5.0, 7.0, 8.0))
    )
    assert made == {"share": [(2.0, 4.0)], "bubbles": [(1.0, 3.0), (0.5, 0.25), (7.0, 8.0)]}


def test_what_is_no_number_has_no_point() -> None:
    assert pairs(table(("", "paper", "ours"), ("a", "up to 3", "2.9"), ("b", "1 / 2", 1.0))) == {"": []}


def test_the_tables_in_the_docs_make_a_report(tmp_path: Path) -> None:
    tables = msgspec.json.decode(FIGURES.read_bytes(), type=dict[str, Table], strict=False)
    made = report(tables)
    write(made, tmp_path / "paper")
    assert read(tmp_path / "paper").summary == made.summary
    assert [shown.title for shown in made.tables] == [each.title for each in tables.values()]
    assert all(len(set(shown.columns)) == len(shown.columns) for shown in made.tables)
    off = {figure.name: figure.values[0] for figure in made.summary}
    assert off["off, SARATHI: a decode against a prefill token"] < 0.03
    assert "What chunks cost a prompt" not in [plot.title for plot in made.plots]  # one pair says nothing
    first = made.plots[0]
    assert isinstance(first, Points) and first.series[0].name == "linear"
    assert first.series[0].points[0] == (224.8, tables["iteration"].rows[0][2])
