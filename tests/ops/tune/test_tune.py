"""The largest setting that keeps the target is found, and whether one serves all is tried, not assumed."""

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from pillion.config import load
from pillion.ops.cli import main
from pillion.ops.report import read
from pillion.ops.tune.run import Asked, NoSetting, Tuned, flags, report, tune, verdict
from pillion.ops.tune.search import Setting, Tried, best, budgets, common, explore
from pillion.steptime import Curve, StepTime, save

MODEL = StepTime(base=0.010, rows=Curve((512,), (0.128,)), tile=16, sampled=Curve((64,), (0.008,)))
"""10 ms, a quarter of a millisecond a row, an eighth for each that samples."""


def tried(budget: int, sequences: int, rate: float, kept: bool = True) -> Tried:
    return Tried(Setting(budget, sequences), 0.1, 1.0, rate, kept)


@given(st.integers(1, 128), st.integers(1, 4096))
def test_budgets_are_multiples_of_the_tile_up_to_the_most(tile: int, most: int) -> None:
    sizes = budgets(tile, most)
    assert all(size % tile == 0 for size in sizes) and list(sizes) == sorted(set(sizes))
    assert sizes[0] == tile and (sizes[-1] == max(most // tile * tile, tile))


@given(st.integers(0, 600))
def test_the_largest_budget_that_keeps_is_found_for_each_number(largest: int) -> None:
    sizes = budgets(16, 512)

    def attempt(setting: Setting) -> Tried:
        return tried(setting.budget, setting.sequences, setting.budget, setting.budget <= largest)

    found = explore(attempt, sizes, (8, 16, 32))
    kept = [one for one in found if one.kept]
    wanted = [size for size in sizes if size <= largest]
    if not wanted:
        assert best(found) is None and {one.setting.sequences for one in found} == {8}
        return
    chosen = best(found)
    assert chosen is not None and chosen.setting.budget == wanted[-1]
    assert {one.setting.sequences for one in kept} == {8, 16, 32}


def test_what_does_most_wins_and_the_smaller_of_each_may_serve_all() -> None:
    assert best([tried(256, 8, 900.0), tried(128, 32, 1100.0), tried(512, 8, 2000.0, False)]) == tried(
        128, 32, 1100.0
    )
    assert common([tried(256, 16, 1.0), tried(128, 64, 1.0)]) == Setting(128, 16)


def asked(tbt: float, *classes: str) -> Asked:
    return Asked(classes, tbt, requests=40, seed=1, most_tokens=512, most_sequences=16)


def test_a_tighter_target_gives_a_smaller_budget_and_each_is_kept() -> None:
    config = load({"num_kv_blocks": 4096}, environ={}).config
    found = {
        tbt: tune(config, MODEL, asked(tbt, "chats", "summaries"), lambda what: None) for tbt in (0.05, 0.1)
    }
    for tbt, tuned in found.items():
        for one in (*tuned.best.values(), *tuned.together.values()):
            assert one.kept == (one.tbt <= tbt)
        assert all(one.kept for one in tuned.best.values())
    tight, loose = (found[tbt].best["summaries"] for tbt in (0.05, 0.1))
    # By the model 144 and 336 rows fit, less what those that sample cost.
    assert 96 <= tight.setting.budget <= 160 < 240 <= loose.setting.budget <= 352
    assert loose.rate > tight.rate
    made = report(MODEL, asked(0.1, "chats", "summaries"), found[0.1])
    assert [table.title for table in made.tables] == ["One setting for all", "chats", "summaries"]
    assert made.notes == [verdict(found[0.1])]


def test_whether_one_serves_all_is_what_came_of_trying_it() -> None:
    each = {"a": tried(256, 16, 9.0), "b": tried(128, 8, 9.0)}
    both = {name: tried(128, 8, 5.0) for name in each}
    assert verdict(Tuned(each, {}, both)) == "for all: --max-num-batched-tokens 128 --max-num-seqs 8"
    missed = both | {"b": tried(128, 8, 5.0, kept=False)}
    said = verdict(Tuned(each, {}, missed))
    assert said.startswith("no one setting serves all. a: --max-num-batched-tokens 256")
    assert flags(Setting(16, 4)) == "--max-num-batched-tokens 16 --max-num-seqs 4"


def test_a_target_that_nothing_keeps_is_said() -> None:
    config = load({"num_kv_blocks": 4096}, environ={}).config
    with pytest.raises(NoSetting, match=r"no setting keeps 0.005 s for chats: the least P99 TBT was 0.01"):
        tune(config, MODEL, asked(0.005, "chats"), lambda what: None)


def test_the_command_tells_the_flags(tmp_path) -> None:
    save(MODEL, tmp_path / "cost.json")
    arguments = [
        "tune",
        "--cost-model",
        str(tmp_path / "cost.json"),
        "--lengths",
        "chats",
        "--requests",
        "20",
    ]
    settings = ["--slo-tbt", "0.1", "--max-num-seqs", "8", "--num-kv-blocks", "4096"]
    result = CliRunner().invoke(main, [*arguments, *settings, "--output", str(tmp_path / "report")])
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1].startswith("for all: --max-num-batched-tokens ")
    assert "<svg" in (tmp_path / "report.html").read_text()
    staged = CliRunner().invoke(
        main, [*arguments, *settings, "-pp", "2", "--output", str(tmp_path / "staged")]
    )
    assert staged.exit_code == 0, staged.output
    one, two = read(tmp_path / "report"), read(tmp_path / "staged")
    assert [made.provenance["pipeline stages"] for made in (one, two)] == [1, 2]
    assert one.summary[-1].name == two.summary[-1].name == "chats: tokens/s"
    assert two.summary[-1].values > one.summary[-1].values
    unknown = CliRunner().invoke(main, [*arguments, "--lengths", "poems"])
    assert unknown.exit_code == 2 and "--lengths poems is unknown" in unknown.output
    refused = CliRunner().invoke(main, [*arguments, "--slo-ttft", "1"])
    assert refused.exit_code == 2 and "No such option" in refused.output
