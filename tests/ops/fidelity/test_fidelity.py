"""The same arrivals to a machine and to its simulation, compared figure by figure."""

import msgspec
import pytest

from pillion.config import Config
from pillion.contracts.entries import Facts
from pillion.ops.bench.offered import Offered
from pillion.ops.fidelity.compared import compared
from pillion.ops.fidelity.pace import evened, pace
from pillion.ops.fidelity.run import Fidelity, Run, Twin, again
from pillion.ops.fidelity.told import report
from pillion.ops.measure import Slo
from pillion.ops.profile.served import Step
from pillion.scheduler.recorded import NoRecording
from pillion.steptime import Curve, StepTime, Work

FACTS = Facts(
    model="demo", fingerprint="f", max_model_len=4096, vocab_size=1 << 17, end_tokens=(), block_size=16,
    num_blocks=4096, max_num_seqs=64, max_step_tokens=512, tile=16, dtype="none", backend="none",
)  # fmt: skip
MODEL = StepTime(base=0.008, rows=Curve((512,), (0.1,)), ratios=(0.5, 1.5, 2.5))
OFFERED = Offered(None, "chats", seconds=20.0, seed=3)
TWIN = Twin(Config(), FACTS, OFFERED, Slo(2.0, 0.15))
ONE = Work(rows=1, decodes=1, sampled=1)


def told(median: float, p99: float) -> dict:
    return {name: {"median": median, "p99": p99} for name in ("tbt_s", "ttft_s", "e2e_s")}


def test_each_figure_is_compared_by_the_means_of_the_repeats():
    first, tail, *rest = compared([told(0.01, 0.1), told(0.03, 0.2)], [told(0.021, 0.3), told(0.021, 0.3)])
    assert (first.name, tail.name, len(rest)) == ("TBT median", "TBT P99", 4)
    assert first.off == pytest.approx(0.05) and first.inside
    assert tail.off == pytest.approx(1.0) and not tail.inside


def test_a_run_in_which_nothing_finished_is_no_figure():
    with pytest.raises(ValueError, match="no run has a TBT median"):
        compared([{"tbt_s": None, "ttft_s": None, "e2e_s": None}], [told(0.1, 0.1)])


def test_the_simulation_gets_the_arrivals_that_the_machine_gets():
    due = OFFERED.due(4.0, repeat=1)
    summary = TWIN.run(MODEL, 4.0, 1)
    assert summary["sent"] == summary["finished"] == len(due) > 50
    assert summary["output_tokens"] == sum(each.output for each in due)
    assert summary["prompt_tokens"] == sum(each.prompt for each in due)


def test_a_pace_is_that_of_the_steps_of_its_run():
    predicted = MODEL.seconds(ONE)
    steps = [
        Step(ONE, predicted * by, at)
        for by, at in ((9.0, 0.9), (0.5, 1.0), (1.5, 1.5), (1.0, 2.0), (9.0, 2.1))
    ]
    assert pace(steps, MODEL, (1.0, 2.0)) == pytest.approx(1.0)
    assert pace(steps[:2], MODEL, (1.0, 2.0)) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="no step of a run"):
        pace(steps, MODEL, (3.0, 4.0))


def test_the_spread_stays_and_its_mean_is_the_paces():
    assert evened(MODEL.ratios) == pytest.approx((1 / 3, 1.0, 5 / 3))
    assert evened(()) == ()


def test_a_run_is_simulated_again_at_its_own_pace():
    found = Fidelity(None, [MODEL], {4.0: [Run(told(1.0, 1.0), TWIN.run(MODEL, 4.0, 0), (1.0, 2.0))]})
    (run,) = found.runs[4.0]
    again(found, TWIN, [Step(ONE, MODEL.seconds(ONE) * 1.5, 1.5)])
    # The spread's own mean is 1.5: only that it was a part of the model, and is one of the pace now, differs.
    assert run.pace == pytest.approx(1.5)
    assert run.paced["e2e_s"]["median"] == pytest.approx(run.simulated["e2e_s"]["median"], rel=0.01)
    again(found, TWIN, [Step(ONE, MODEL.seconds(ONE), 1.5)])
    assert run.paced["e2e_s"]["median"] < 0.8 * run.simulated["e2e_s"]["median"]
    with pytest.raises(NoRecording, match="--record"):
        again(found, TWIN, [])


def test_the_report_has_them_beside_each_other():
    run = Run(told(0.01, 0.1), told(0.011, 0.1), (1.0, 2.0), 1.25, told(0.0105, 0.1))
    before, paced = report({"server": "s"}, {2.5: [run]}).tables
    assert before.title == "2.5 requests/s" and before.rows[0] == [
        "TBT median",
        0.01,
        0.011,
        pytest.approx(0.1),
        "no",
    ]
    assert paced.title == "2.5 requests/s, at its pace" and paced.note == "Pace: 1.250."
    assert paced.rows[0] == ["TBT median", 0.01, 0.0105, pytest.approx(0.05), "no"]


def test_without_recordings_the_report_has_what_was_simulated_before():
    made = report({"server": "s"}, {2.5: [Run(told(0.01, 0.1), told(0.011, 0.1), (1.0, 2.0))]})
    assert [table.title for table in made.tables] == ["2.5 requests/s"]
    raw = msgspec.json.decode(msgspec.json.encode(made))["raw"]
    assert raw["runs"]["2.5"][0]["simulated"] == told(0.011, 0.1) and raw["at its pace"] == {}
