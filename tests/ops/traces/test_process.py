"""Arrival processes: the rate and the spread that they were asked for."""

import itertools
import random
import statistics

import pytest

from pillion.ops.traces import LENGTHS, Arrival, arrivals, gamma, poisson, replayed

CHATS = LENGTHS["chats"]


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_gaps_have_the_rate_and_the_spread(cv):
    times = list(itertools.islice(gamma(20.0, cv)(random.Random(1)), 8000))
    gaps = [b - a for a, b in itertools.pairwise([0.0, *times])]
    assert min(gaps) >= 0 and statistics.mean(gaps) == pytest.approx(1 / 20, rel=0.06)
    assert statistics.pstdev(gaps) / statistics.mean(gaps) == pytest.approx(cv, rel=0.06)


@pytest.mark.parametrize(("rate", "cv"), [(0.0, 1.0), (1.0, 0.0)])
def test_what_is_no_process_is_said(rate, cv):
    with pytest.raises(ValueError, match="above 0"):
        gamma(rate, cv)


def test_arrivals_are_the_seed_s_and_end_when_told():
    drawn = list(arrivals(random.Random(1), CHATS, poisson(20.0), seconds=100.0))
    assert drawn == list(arrivals(random.Random(1), CHATS, poisson(20.0), seconds=100.0))
    assert drawn != list(arrivals(random.Random(2), CHATS, poisson(20.0), seconds=100.0))
    assert len(drawn) == pytest.approx(2000, rel=0.1)
    assert 0 < drawn[0].at < drawn[-1].at < 100
    assert len(list(arrivals(random.Random(1), CHATS, poisson(20.0), requests=7))) == 7
    assert len({one.prompt for one in drawn}) > 300


def test_a_trace_is_replayed_as_fast_as_told():
    trace = [Arrival(0.0, 5, 1), Arrival(3.0, 6, 2, tenant="a")]
    assert list(replayed(trace)) == trace
    assert list(replayed(trace, 2.0)) == [Arrival(0.0, 5, 1), Arrival(1.5, 6, 2, tenant="a")]
