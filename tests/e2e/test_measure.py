"""A real stack is measured: reports of `pillion bench traffic`, made, read back and compared."""

from pathlib import Path
from typing import Any

from click.testing import CliRunner

from pillion.ops.cli import main
from pillion.ops.report import read


def test_a_load_is_sent_and_two_reports_are_compared(stack: Any, tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, done.output
        return done.output

    for name in "ab":
        run(
            *("bench", "traffic", "--state-dir", str(stack.state), "--rate", "8", "--requests", "6"),
            *("--longest", "40", "--repeats", "2", "--seed", "11" if name == "a" else "12"),
            *("--ttft", "90", "--tbt", "90", "--output", str(tmp_path / name)),
        )
    report = read(tmp_path / "a.html")
    (told,) = report.raw["runs"]
    for one in told["repeats"]:
        assert one["sent"] == one["finished"] == one["good"] == 6
        assert one["ttft_s"]["count"] == 6 and one["cached_tokens"] == 0
        assert one["tbt_s"]["count"] == one["output_tokens"] - 6 > 0
        assert one["delay_s"]["median"] > 0  # its schedulers were found on this machine, and asked
    assert report.provenance["model"] == "demo" and "TBT" in report.definitions
    assert "</html>" in (tmp_path / "a.html").read_text()
    said = run("compare", str(tmp_path / "a"), str(tmp_path / "b"), "--output", str(tmp_path / "ab"))
    assert "TTFT median" in said and "TBT P99" in said
    both = read(tmp_path / "ab").plots
    assert [len(plot.series) for plot in both[:2]] == [2, 2]  # type: ignore[union-attr]


def test_the_capacity_of_a_stack_is_searched(stack: Any, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        main,
        [
            *("capacity", "--state-dir", str(stack.state), "--requests", "4", "--longest", "30"),
            *("--probes", "2", "--start", "4", "--tbt", "90", "--delay", "90", "--seed", "21"),
            *("--output", str(tmp_path / "capacity")),
        ],
    )
    assert done.exit_code == 0, done.output
    made = read(tmp_path / "capacity")
    # With such targets every rate keeps, and that none was too much is said.
    assert made.raw["capacities"] == [8.0] and [row[1] for row in made.tables[0].rows] == [4.0, 8.0]
    assert [row[2:7] for row in made.tables[0].rows] == [[4, 4, 0, 0, 0]] * 2
    assert any("no rate that was tried was too much" in note for note in made.notes)
