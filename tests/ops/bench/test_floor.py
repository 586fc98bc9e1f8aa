"""The floor of a run from counters by intensity, against the sum over its steps."""

import random
from collections import Counter

import pytest

from pillion.executor.work import Work
from pillion.ops.bench.ceilings import Ceilings, best
from pillion.ops.bench.floor import account, between, floor, samples
from pillion.telemetry import Metrics, names

CEILINGS = Ceilings(
    flops_per_s=400.0, int8_flops_per_s=800.0, bytes_per_s=10.0
)  # they balance at 40 operations a byte
METRICS = (names.FLOPS, names.READ_BYTES, names.STEP_SECONDS, names.STEP_GAP_SECONDS, names.STEP_PART_SECONDS)


def counted(steps: list[Work]) -> dict[str, tuple[float, float]]:
    flops: Counter[str] = Counter()
    read: Counter[str] = Counter()
    for step in steps:
        flops[step.intensity] += step.flops
        read[step.intensity] += step.read_bytes
    return {each: (flops[each], read[each]) for each in flops}


def test_the_floor_is_the_sum_over_steps_but_for_the_bucket_of_the_balance() -> None:
    random_ = random.Random(1)
    steps = [
        Work(int(read * 2 ** random_.uniform(-2, 11)), read)
        for read in random_.choices(range(1000, 9000), k=500)
    ]
    away = [step for step in steps if step.intensity != "64"]
    exact = sum(max(step.flops / 400, step.read_bytes / 10) for step in away)
    told = floor({"work": counted(away), "step_s": exact * 2}, CEILINGS, exact * 4, 12.0, int8=False)
    assert told["seconds"] == pytest.approx(exact)
    assert (told["reached"], told["reached_in_steps"]) == (pytest.approx(0.25), pytest.approx(0.5))
    assert told["tokens_per_s"] == pytest.approx(48.0)
    assert 300 < len(away) < 499
    whole = sum(max(step.flops / 400, step.read_bytes / 10) for step in steps)
    with_balance = floor({"work": counted(steps), "step_s": 1.0}, CEILINGS, 1.0, None, int8=False)
    assert 0.99 * whole < with_balance["seconds"] < whole and with_balance["tokens_per_s"] is None
    # Totals alone would tell much less.
    flops, read = sum(step.flops for step in steps), sum(step.read_bytes for step in steps)
    totals = CEILINGS.seconds(flops, read, int8=False)
    assert totals < 0.95 * with_balance["seconds"]


def test_no_steps_have_no_floor() -> None:
    assert floor({"work": {}, "step_s": 0.0}, CEILINGS, 1.0, 5.0, int8=False) == {
        "seconds": 0, "reached": 0, "reached_in_steps": None, "tokens_per_s": None,
        "gflop_per_s": CEILINGS.flops_per_s / 1e9, "gb_per_s": CEILINGS.bytes_per_s / 1e9,
    }  # fmt: skip


def executor(steps: int) -> Metrics:
    metrics = Metrics("executor", "1", METRICS)
    for _ in range(steps):
        metrics[names.FLOPS].labels(intensity="2").inc(100)
        metrics[names.READ_BYTES].labels(intensity="2").inc(60)
        metrics[names.STEP_SECONDS].observe(0.25)
        metrics[names.STEP_GAP_SECONDS].observe(0.002)
        metrics[names.STEP_PART_SECONDS].labels(part="forward").inc(0.2)
    return metrics


def test_what_two_executors_did_meanwhile() -> None:
    before = samples(executor(steps).text().decode() for steps in (1, 2))
    after = samples(executor(steps).text().decode() for steps in (3, 4))
    told = account(between(before, after), 2.0, 2)
    assert told.pop("work") == {"2": (400, 240)}
    assert told == {
        "steps": 4, "step_s": 1.0, "step_share": 0.25, "gap_s": pytest.approx(0.008),
        "gap_mean_ms": pytest.approx(2.0), "parts_s": {"forward": pytest.approx(0.8)},
    }  # fmt: skip
    nothing = account(between(after, after), 2.0, 2)
    assert (nothing["work"], nothing["steps"], nothing["gap_mean_ms"]) == ({}, 0, None)


def test_an_executor_that_was_started_again_is_noticed() -> None:
    before, after = (samples([executor(steps).text().decode()]) for steps in (2, 1))
    with pytest.raises(ValueError, match="started again"):
        between(before, after)


def test_the_higher_of_two_ceilings_counts() -> None:
    assert best(Ceilings(1.0, 7.0, 5.0), Ceilings(2.0, 6.0, 4.0)) == Ceilings(2.0, 7.0, 5.0)


def test_products_of_int8_have_a_rate_of_their_own() -> None:
    assert [CEILINGS.seconds(800.0, 5.0, int8=int8) for int8 in (False, True)] == [2.0, 1.0]
    slow = Ceilings(flops_per_s=400.0, int8_flops_per_s=100.0, bytes_per_s=10.0)  # none is bound to use it
    assert slow.seconds(800.0, 5.0, int8=True) == 2.0
    assert (
        floor({"work": {"64": (800.0, 5.0)}, "step_s": 1.0}, CEILINGS, 1.0, None, int8=True)["seconds"] == 1.0
    )
