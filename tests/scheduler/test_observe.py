"""What is counted of plans and results."""

from pillion.scheduler.messages import Plan, RowResult, StepDone
from pillion.scheduler.observe import Observer


def plan(step, slots, counts, samples, decodes):
    return Plan(
        step=step, release=(), take=(), slots=slots, starts=(0,) * len(slots), counts=counts,
        samples=samples, block_counts=(0,) * len(slots), blocks=(), decodes=decodes, budget=64,
    )  # fmt: skip


def test_tokens_are_counted_as_they_were_computed():
    observer = Observer()

    def counted():
        value = observer.metrics.registry.get_sample_value
        kinds = [value("pillion_step_tokens_total", {"kind": kind}) for kind in ("prefill", "decode")]
        return (*kinds, value("pillion_plan_steps_count"), value("pillion_plan_steps_sum"))

    # A decode, a prompt's last chunk, which brings a token too, and one of another.
    observer.planned(plan(1, (0, 1, 2), (1, 20, 7), (1, 1, 0), 1))
    observer.returned(StepDone(1, (RowResult(0, 1, (5,)), RowResult(1, 2, (6,))), 0.01))
    assert counted() == (27, 1, 1, 1)
    # Of two times five granted tokens one sequence ended with its third.
    observer.planned(plan(2, (0, 1), (1, 1), (5, 5), 2))
    rows = RowResult(0, 1, (1, 2, 3, 4, 5)), RowResult(1, 2, (1, 2, 9), "stop")
    observer.returned(StepDone(2, rows, 0.05, steps=5))
    assert counted() == (27, 9, 2, 6)
    # What a failed plan was to compute is not there.
    observer.planned(plan(3, (0,), (1,), (8,), 1))
    observer.planned(plan(4, (0,), (1,), (2,), 1))
    observer.returned(StepDone(4, (RowResult(0, 1, (1, 2)),), 0.02, steps=2))
    assert counted() == (27, 11, 4, 16)
    # The same in totals, for the heartbeat.
    assert (observer.prefilled, observer.decoded, observer.budget) == (27, 11, 64)
    assert round(observer.step_time, 6) == 0.08
