"""The search finds the highest rate that keeps, a report shows each probe, and both ways use the same."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillion.ops.capacity.find import Asked, NoCapacity, Tried, find
from pillion.ops.capacity.search import Targets, missed, search
from pillion.ops.capacity.told import report
from pillion.ops.measure import Outcome, Slo, Tally

TARGETS = Targets(tbt=0.2, delay=2.0)
SLO = Slo(3.0, 0.2)
ASKED = Asked(TARGETS, SLO, probes=20, repeats=2)


def searched(capacity: float, start: float, tolerance: float, most: int) -> tuple[float | None, list[float]]:
    rates = search(start, tolerance, most)
    tried = [next(rates)]
    while True:
        try:
            tried.append(rates.send(tried[-1] <= capacity))
        except StopIteration as over:
            return over.value, tried


@given(st.floats(0.01, 500.0), st.floats(0.01, 500.0), st.floats(0.01, 0.3))
def test_the_capacity_is_found_within_the_tolerance(capacity: float, start: float, tolerance: float) -> None:
    found, tried = searched(capacity, start, tolerance, 40)
    assert found is not None and found <= capacity <= found * (1 + tolerance) * (1 + 1e-9)
    assert found in tried and len(set(tried)) == len(tried)


def test_no_more_rates_are_tried_than_may_be() -> None:
    assert searched(100.0, 1.0, 0.01, 3) == (4.0, [1.0, 2.0, 4.0])
    assert searched(0.1, 1.0, 0.01, 2) == (None, [1.0, 0.5])


def tally(tbt: float = 0.1, delay: float | None = 0.5, ttft: float = 1.0, **results: int) -> Tally:
    made = Tally(SLO)
    for result, count in (results or {"finished": 100}).items():
        for _ in range(count):
            first = ttft if result == "finished" else None
            made.add(
                Outcome(0.0, 10, 5, result, ttft=first, delay=delay, gap_p99=tbt), [tbt] if first else []
            )
    return made


def test_why_the_targets_were_missed_is_told() -> None:
    assert missed(tally(), None, TARGETS) == ""
    assert missed(tally(tbt=0.3), None, TARGETS) == "P99 TBT 300 ms"
    assert missed(tally(delay=2.5), None, TARGETS) == "median scheduling delay 2.5 s"
    assert missed(tally(finished=99, queue_full=1), None, TARGETS) == ""
    assert missed(tally(finished=95, queue_full=3, unfinished=2), None, TARGETS) == "5 % not finished"
    assert missed(tally(failed=10), None, TARGETS) == "100 % not finished"
    both = missed(tally(tbt=0.3, finished=90, failed=10), None, TARGETS)
    assert both == "10 % not finished, P99 TBT 300 ms"


def test_without_delays_the_first_tokens_stand_for_them() -> None:
    late = tally(delay=None, ttft=2.5)
    assert missed(late, None, TARGETS) == "median TTFT 2.5 s"
    assert missed(late, 0.1, TARGETS) == ""  # the server says that it was something else
    assert missed(late, 2.2, TARGETS) == "median scheduling delay 2.2 s"


async def test_every_search_is_told_with_its_evidence() -> None:
    numbers: list[int] = []

    async def attempt(rate: float, repeat: int, number: int) -> Tried:
        numbers.append(number)
        # So many are served as the rate, and gaps grow with it: above ten, or nine in the second, too long.
        slow = 0.02 * rate * (1.0 if repeat == 0 else 10 / 9)
        return Tried(tally(tbt=slow, finished=100), 100 / rate, None, (f"note {repeat}",))

    capacities, probes = await find(attempt, ASKED)
    assert capacities[0] == pytest.approx(10, rel=0.06) and capacities[1] == pytest.approx(9, rel=0.06)
    assert numbers == list(range(len(probes)))
    assert next(probe.rate for probe in probes if probe.repeat == 1) == capacities[0]
    made = report("Capacity", {"seed": 1}, capacities, probes, ASKED)
    assert made.summary[0].name == "capacity" and made.summary[0].values == capacities
    evidence = made.tables[0]
    assert len(evidence.rows) == len(probes)
    for row, probe in zip(evidence.rows, probes, strict=True):
        assert (row[1], row[-1]) == (probe.rate, probe.missed or "kept")
    assert {"rejected", "failed", "unfinished"} <= set(evidence.columns)
    kept = {(row[0], row[1]) for row in evidence.rows if row[-1] == "kept"}
    assert {("1", capacities[0]), ("2", capacities[1])} <= kept
    assert [series.name for series in made.plots[0].series] == ["search 1", "search 2"]  # type: ignore[union-attr]
    assert made.notes == ["note 0", "note 1"] and "0.2 s" in made.definitions["capacity"]
    # The distributions shown are of the capacity and of the rates beside it.
    names = [series.name for series in made.plots[3].series]  # type: ignore[union-attr]
    assert len(names) == 3 and f"{capacities[0]:.3g}/s" == names[1]


async def test_no_rate_that_keeps_is_said() -> None:
    async def attempt(rate: float, repeat: int, number: int) -> Tried:
        return Tried(tally(tbt=9.0), 1.0)

    with pytest.raises(NoCapacity, match=r"no rate from 0.25 requests/s on keeps .* P99 TBT 9 s"):
        await find(attempt, replace(ASKED, probes=3, repeats=1))
