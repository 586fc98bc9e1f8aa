"""The same arrivals to a machine and to its simulation, compared figure by figure."""

import msgspec
import pytest

from pillion.config import Config
from pillion.contracts.entries import Facts
from pillion.ops.bench.offered import Offered
from pillion.ops.fidelity.compared import compared
from pillion.ops.fidelity.run import report, simulated
from pillion.ops.measure import Slo
from pillion.steptime import Curve, StepTime

FACTS = Facts(
    model="demo", fingerprint="f", max_model_len=4096, vocab_size=1 << 17, end_tokens=(), block_size=16,
    num_blocks=4096, max_num_seqs=64, max_step_tokens=512, tile=16, dtype="none", backend="none",
)  # fmt: skip
MODEL = StepTime(base=0.008, rows=Curve((512,), (0.1,)))


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
    offered = Offered(None, "chats", seconds=20.0, seed=3)
    due = offered.due(4.0, repeat=1)
    tally = simulated(Config(), FACTS, MODEL, due, Slo(2.0, 0.15), 3)
    summary = tally.summary(20.0)
    assert summary["sent"] == summary["finished"] == len(due) > 50
    assert summary["output_tokens"] == sum(each.output for each in due)
    assert summary["prompt_tokens"] == sum(each.prompt for each in due)


def test_the_report_has_both_beside_each_other():
    made = report({"server": "s"}, {2.5: ([told(0.01, 0.1)], [told(0.011, 0.1)])})
    (table,) = made.tables
    assert table.title == "2.5 requests/s" and table.rows[0][:3] == ["TBT median", 0.01, 0.011]
    assert msgspec.json.decode(msgspec.json.encode(made))["raw"]["simulated"]["2.5"][0] == told(0.011, 0.1)
