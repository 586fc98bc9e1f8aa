"""`pillion capacity --cost-model`: of settings, with steps that take 10 ms and 0.1 ms a row."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pillion.ops.cli import main
from pillion.ops.report import read
from pillion.steptime import Curve, StepTime, save


@pytest.fixture
def cost(tmp_path: Path) -> str:
    save(StepTime(rows=Curve((1, 1000), (0.0101, 0.11)), tile=16), tmp_path / "cost.json")
    return str(tmp_path / "cost.json")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["capacity", "--requests", "150", "--tolerance", "0.2", *arguments])


def test_looser_targets_give_more_and_the_report_shows_why(cost: str, tmp_path: Path) -> None:
    capacities = []
    for name, tbt in (("strict", "0.03"), ("loose", "1")):
        done = run("--cost-model", cost, "--tbt", tbt, "--output", str(tmp_path / name))
        assert done.exit_code == 0, done.output
        made = read(tmp_path / name)
        capacities.append(made.raw["capacities"][0])
        assert made.summary[0].values == made.raw["capacities"]
        rows = made.tables[0].rows
        at = made.tables[0].columns.index("TBT P99")
        for row in rows:
            assert row[2] == 150 and (row[-1] == "kept" or "P99 TBT" in row[-1] or "delay" in row[-1])
            assert row[-1] != "kept" or row[at] <= float(tbt)  # type: ignore[operator]
        assert {row[-1] == "kept" for row in rows} == {True, False}
        assert {"P99 TBT by rate", "What a step carries", "Queues"} <= {plot.title for plot in made.plots}
        assert "cost model" in made.provenance
    assert capacities[0] < capacities[1]


def test_pipeline_stages_hold_more(cost: str, tmp_path: Path) -> None:
    found = []
    for stages in ("1", "4"):
        flags = "--cost-model", cost, "--tbt", "1", "-pp", stages, "--output", str(tmp_path / stages)
        few = "--requests", "30", "--probes", "4", "--lengths", "azure_code"
        done = run(*flags, *few, "--max-num-batched-tokens", "256")
        assert done.exit_code == 0, done.output
        found.append(read(tmp_path / stages))
    assert [str(one.provenance["pipeline stages"]) for one in found] == ["1", "4"]
    assert found[1].raw["capacities"][0] > 1.3 * found[0].raw["capacities"][0]


def test_the_same_seed_finds_the_same(cost: str, tmp_path: Path) -> None:
    for name in "ab":
        assert run("--cost-model", cost, "--seed", "4", "--output", str(tmp_path / name)).exit_code == 0
    assert read(tmp_path / "a").raw == read(tmp_path / "b").raw


def test_what_cannot_be_searched_is_one_line(cost: str, tmp_path: Path) -> None:
    for arguments, code, said in (
        (("--cost-model", cost, "--url", "http://127.0.0.1:1"), 2, "give --url or --cost-model, not both"),
        (("-pp", "2"), 2, "give --cost-model with --pipeline-parallel-size"),
        (("--cost-model", str(tmp_path / "none.json")), 1, "none.json"),
        (("--cost-model", cost, "--tbt", "0.001", "--probes", "3"), 1, "keeps the targets: P99 TBT"),
        (("--state-dir", str(tmp_path)), 1, "no stack 'default' runs here"),
    ):
        done = run(*arguments)
        assert (done.exit_code, said in done.output) == (code, True), done.output
        assert [line for line in done.output.splitlines() if line.startswith("pillion: ")][1:] == []


def test_settings_that_do_nothing_are_told(cost: str) -> None:
    live = run("--url", "http://127.0.0.1:1", "--max-num-seqs", "4")
    assert live.exit_code == 2 and "--max-num-seqs means nothing to a running server" in live.output
    alone = ("--cost-model", cost, "--probes", "2", "--credit-seconds", "1")
    assert "--credit-seconds: nothing is refused for it" in run(*alone).output
    assert "nothing is refused" not in run(*alone, "--replicas", "2").output
