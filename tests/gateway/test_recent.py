"""The last minute: from totals of heartbeats, and from times as they come."""

import random

from pillion.contracts.entries import Heartbeat
from pillion.gateway.recent import SPAN, Spread, Steps


def beat(epoch: int, steps: int, prefilled: int, decoded: int, seconds: float) -> Heartbeat:
    return Heartbeat(
        "0", epoch, "ready", steps=steps, prefilled=prefilled, decoded=decoded, step_time=seconds,
        step_budget=64, running=2, kv_usage=0.25,
    )  # fmt: skip


def test_what_steps_carried_is_the_difference_of_totals_by_second() -> None:
    steps = Steps()
    beats = [
        (10.1, beat(1, 100, 9000, 500, 50.0)),  # what was before nobody saw
        (10.9, beat(1, 102, 9040, 504, 50.5)),
        (11.2, beat(1, 103, 9040, 506, 50.75)),
        (12.0, beat(2, 150, 9999, 600, 99.0)),  # another process, whose totals began anew
        (12.5, beat(2, 152, 9999, 604, 99.5)),
    ]
    former = None
    for now, each in beats:
        steps.heard(former, each, now)
        former = each
    minute = steps.minute(13.2)
    assert {len(column) for column in minute.values()} == {SPAN}
    last = {name: column[-4:] for name, column in minute.items()}
    assert last["steps"] == [0, 2, 1, 2]
    assert last["prefill"] == [0, 40, 0, 0]
    assert last["decode"] == [0, 4, 2, 4]
    assert last["seconds"] == [0, 0.5, 0.25, 0.5]
    assert last["budget"] == [0, 64, 64, 64] and last["running"] == [0, 2, 2, 2]
    assert sum(steps.minute(11.2 + SPAN)["steps"]) == 3 and sum(steps.minute(13.0 + SPAN)["steps"]) == 0


def test_memory_is_bounded() -> None:
    steps, spread = Steps(), Spread()
    for second in range(3 * SPAN):
        steps.heard(None, beat(1, 1, 1, 1, 1.0), second)
        spread.add(2.0**second, second)
    assert len(steps._seconds) == len(spread._seconds) == SPAN + 1


def test_quantiles_are_right_within_five_percent() -> None:
    rng = random.Random(3)
    values = [rng.lognormvariate(-3, 0.8) for _ in range(5000)]
    spread = Spread()
    for number, value in enumerate(values):
        spread.add(value, 100 + number / 5000)
    told = spread.summary(101.5)
    exact = sorted(values)
    assert told["count"] == 5000 and told["worst"] == round(exact[-1], 5)
    for share in (50, 90, 99):
        true = exact[share * 50 - 1]
        assert abs(told[f"p{share}"] - true) <= 0.05 * true
    assert spread.summary(101.5 + SPAN) == {"count": 0, "p50": None, "p90": None, "p99": None, "worst": None}


def test_the_heat_map_has_every_token_in_its_second_and_row() -> None:
    spread = Spread()
    spread.add(0.03, 7.5)
    spread.add(0.0, 7.6, 3)
    spread.add(0.2, 8.0)
    spread.add(0.2, 9.1)  # this second is not over
    told = spread.heat(9.5)
    bounds, counts = told["bounds"], told["counts"]
    assert len(counts) == SPAN and sum(map(sum, counts)) == 5
    assert bounds[0] == 0.0005 and counts[-2][0] == 3
    (row,) = [row for row, count in enumerate(counts[-2]) if count == 1]
    assert bounds[row - 1] < 0.03 <= bounds[row]
    (row,) = [row for row, count in enumerate(counts[-1]) if count]
    assert bounds[row - 1] < 0.2 <= bounds[row] and row == len(bounds) - 1
    assert spread.worsts(9.5)[-3:] == [0, 0.03, 0.2]
