"""Counts reconcile, goodput is over what was sent, and definitions hold."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillion.ops.measure import Outcome, Slo, Tally, Windows, difference, mean_of, outcome

SLO = Slo(3.0, 0.2)
TIMES = st.one_of(st.none(), st.floats(0.0, 10.0))
OUTCOMES = st.builds(
    Outcome,
    at=st.floats(0.0, 5000.0),
    prompt=st.integers(1, 99),
    output=st.integers(0, 99),
    result=st.sampled_from(["finished", "failed", "unfinished", "queue_full", "predicted_ttft"]),
    ttft=TIMES,
    gap_p99=TIMES,
    delay=TIMES,
)


def seen(
    result: str = "finished", ttft: float | None = 1.0, gap: float | None = 0.1, **changes: Any
) -> Outcome:
    return Outcome(0.0, 10, 5, result, ttft=ttft, gap_p99=gap, gap_worst=gap, **changes)


def test_times_count_from_when_it_was_due() -> None:
    one, gaps = outcome(5.0, [7.0, 7.1, 7.4], prompt=2, result="finished", lag=0.5)
    assert gaps == pytest.approx([0.1, 0.3])
    assert (one.ttft, one.e2e, one.tpot) == (2.0, pytest.approx(2.4), pytest.approx(0.2))
    assert one.gap_p99 == one.gap_worst == pytest.approx(0.3)
    assert one.good(Slo(2.0, 0.31)) and not one.good(Slo(1.9, 0.31)) and not one.good(Slo(2.0, 0.29))


def test_what_is_not_there_is_none_and_never_nothing() -> None:
    one_token, gaps = outcome(0.0, [0.1], prompt=1, result="finished")
    assert (gaps, one_token.tpot, one_token.gap_p99) == ([], None, None)
    assert one_token.good(Slo(0.2, 0.1))
    refused, _ = outcome(0.0, [], prompt=1, result="queue_full")
    assert (refused.ttft, refused.e2e) == (None, None) and refused.rejected
    running, _ = outcome(0.0, [0.1, 0.2], prompt=1, result="unfinished")
    assert running.e2e is None and not running.good(SLO) and not running.rejected


def test_goodput_is_over_what_was_sent() -> None:
    tally = Tally(SLO)
    for one in (seen(), seen(), seen(ttft=5.0), seen(gap=0.5), seen("queue_full", None, None),
                seen("failed", None), seen("unfinished")):  # fmt: skip
        tally.add(one, [0.1, 0.0])
    told = tally.summary(10.0)
    assert (told["sent"], told["good"], told["goodput_per_s"], told["finished_per_s"]) == (7, 2, 0.2, 0.4)
    assert told["results"] == {"failed": 1, "finished": 4, "queue_full": 1, "unfinished": 1}
    assert (told["missed_ttft"], told["missed_tbt"], told["good_share"]) == (1, 1, 2 / 7)
    assert (told["met_ttft_share"], told["met_tbt_share"]) == (4 / 7, 4 / 7)
    assert (told["tbt_s"]["count"], told["coalesced_share"], told["e2e_s"]) == (14, 0.5, None)


@given(st.lists(OUTCOMES, max_size=60))
def test_counts_reconcile(outcomes: list[Outcome]) -> None:
    tally = Tally(SLO)
    for one in outcomes:
        tally.add(one)
    told = tally.summary(1.0)
    kinds = ("finished", "rejected", "failed", "unfinished")
    assert told["sent"] == len(outcomes) == sum(told[kind] for kind in kinds)
    assert told["sent"] == sum(told["results"].values())
    assert told["good"] == sum(one.good(SLO) for one in outcomes) <= told["finished"]
    windows = tally.windows.told()
    assert len(windows) <= 120
    for name in ("sent", "good", *kinds):
        assert sum(window[name] for window in windows) == told[name]
    assert (told["delay_s"] or {"count": 0})["count"] == sum(one.delay is not None for one in outcomes)


def test_windows_widen_instead_of_growing_in_number() -> None:
    windows = Windows(("sent", "good"), width=1.0, most=4)
    for at in range(9):
        windows.add(float(at), sent=1, good=at == 8)
    assert windows.width == 4.0
    assert windows.told() == [
        {"at": 0.0, "sent": 4, "good": 0},
        {"at": 4.0, "sent": 4, "good": 0},
        {"at": 8.0, "sent": 1, "good": 1},
    ]


def test_what_goes_on_is_spread_over_the_windows_that_it_is_in() -> None:
    windows = Windows(("steps", "tokens"), width=1.0, most=4)
    windows.spread(0.5, 3.0, steps=1, tokens=10)
    assert [(row["at"], row["tokens"]) for row in windows.told()] == [
        (0.0, pytest.approx(2.0)), (1.0, pytest.approx(4.0)), (2.0, pytest.approx(4.0)), (3.0, 0.0)
    ]  # fmt: skip
    windows.spread(2.0, 2.0, steps=1)
    windows.spread(3.5, 16.0, tokens=8)
    rows = windows.told()
    assert windows.width == 8.0 and len(rows) == 3
    assert (sum(row["steps"] for row in rows), sum(row["tokens"] for row in rows)) == (2.0, pytest.approx(18))


def test_confidence_needs_repeats() -> None:
    assert mean_of([2.0]) == (2.0, None)
    assert mean_of([1.0, 2.0, 3.0]) == (2.0, pytest.approx(4.303 / 3**0.5, rel=1e-3))
    assert difference([1.0], [3.0, 4.0]) == (2.5, None)
    more, half = difference([1.0, 2.0, 3.0], [11.0, 12.0, 13.0])
    assert (more, half) == (10.0, pytest.approx(2.776 * (2 / 3) ** 0.5, rel=1e-3))
    assert difference([1.0, 1.0], [2.0, 2.0]) == (1.0, 0.0)
