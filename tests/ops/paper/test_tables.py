"""What the page says of its tables holds."""

import json
from itertools import pairwise
from pathlib import Path

from click.testing import CliRunner

from pillion.ops.paper import sarathi
from pillion.ops.paper.__main__ import TABLES, main
from pillion.ops.report import read

DOCS = Path(__file__).parents[3] / "docs"


def test_the_smaller_chunk_is_faster_as_the_paper_reckons():
    table = sarathi.budget_example()
    assert [(round(row[1], 6), round(row[2], 6)) for row in table.rows] == [(123, 123), (96, 96)]


def test_decodes_cost_what_the_paper_says():
    assert all(abs(row[2] / row[1] - 1) < 0.1 for row in sarathi.decode_cost().rows if row[1])


def test_a_run_of_one_table_keeps_the_others(tmp_path):
    for name in ("tiles", "iteration"):
        told = ["--report", str(tmp_path / "told")]
        done = CliRunner().invoke(main, ["--only", name, "--docs", str(tmp_path), *told])
        assert done.exit_code == 0, done.output
    figures = json.loads((tmp_path / "figures" / "paper.json").read_text())
    assert list(figures) == ["iteration", "tiles"]
    assert list(read(tmp_path / "told").raw["tables"]) == ["iteration", "tiles"]
    page = (tmp_path / "paper.md").read_text()
    assert page.count("*What differs:*") == 2 and "257" in page


def test_the_page_in_the_docs_is_of_its_figures():
    figures = json.loads((DOCS / "figures" / "paper.json").read_text())
    assert set(figures) <= set(TABLES)
    page = (DOCS / "paper.md").read_text()
    assert all(table["title"] in page and table["differs"] in page for table in figures.values())
    gains = [float(row[7]) for row in figures["gains"]["rows"]]
    assert all(b < a for half in (gains[:3], gains[3:]) for a, b in pairwise(half))  # with length


def test_the_page_says_of_capacities_what_they_are():
    figures = json.loads((DOCS / "figures" / "paper.json").read_text())
    rows = figures["capacities"]["rows"]
    strict = [row for row in rows if row[2] == min(other[2] for other in rows if other[:2] == row[:2])]
    assert len(strict) == 8 and all(min(row[8], row[10]) > 1.8 for row in strict)
    assert len(rows) == 16 and all(row[6] > row[5] for row in rows)
