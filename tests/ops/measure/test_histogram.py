"""Quantiles within 1 % of the exact, whatever the times."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillion.ops.measure import Histogram, percentile

SECONDS = st.one_of(st.just(0.0), st.floats(1e-6, 1e5))


@given(st.lists(SECONDS, min_size=1, max_size=300), st.floats(0.0, 1.0))
def test_a_quantile_is_within_one_percent_of_the_exact(values: list[float], share: float) -> None:
    one, all_ = Histogram(), Histogram()
    for value in values:
        one.add(value)
    all_.extend(values)
    exact = percentile(values, share)
    for histogram in (one, all_):
        assert histogram.quantile(share) == pytest.approx(exact, rel=0.01)
        assert histogram.mean == pytest.approx(sum(values) / len(values))
        assert (histogram.count, histogram.nothing) == (len(values), values.count(0.0))
        assert (histogram.least, histogram.most) == (min(values), max(values))
    assert one.curve() == all_.curve()


@given(st.lists(SECONDS, min_size=1, max_size=300))
def test_the_curve_rises_to_one_and_passes_the_quantiles(values: list[float]) -> None:
    histogram = Histogram()
    histogram.extend(values)
    curve = histogram.curve()
    assert curve == sorted(curve) and curve[-1] == (max(values), 1.0)
    for time, share in curve[:-1]:
        at_most = sum(value <= time * 1.01 for value in values) / len(values)
        assert sum(value <= time * 0.99 for value in values) / len(values) <= share <= at_most


def test_many_of_the_same_are_counted_at_once() -> None:
    histogram = Histogram()
    histogram.add(0.1, 99)
    histogram.add(2.0)
    assert histogram.summary() == {
        "count": 100, "mean": pytest.approx(0.119), "median": pytest.approx(0.1, rel=0.01),
        "p90": pytest.approx(0.1, rel=0.01), "p99": pytest.approx(0.1, rel=0.01), "p999": 2.0, "worst": 2.0,
    }  # fmt: skip
    assert Histogram().summary() is None and Histogram().curve() == []


def test_its_size_does_not_grow() -> None:
    histogram = Histogram()
    before = histogram._counts.nbytes
    histogram.extend(np.random.default_rng(1).lognormal(-3, 4, 100_000))
    histogram.add(1e9)
    assert histogram._counts.nbytes == before < 30_000
    assert histogram.most == 1e9 == histogram.quantile(1.0)


def test_what_is_no_time_is_refused() -> None:
    histogram = Histogram()
    with pytest.raises(ValueError, match="nan is no time"):
        histogram.add(float("nan"))
    with pytest.raises(ValueError, match="not every"):
        histogram.extend([1.0, float("inf")])
    with pytest.raises(IndexError):
        histogram.quantile(0.5)
    assert histogram.count == 0


def test_percentile_is_the_nearest_rank() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [percentile(values, share) for share in (0.2, 0.21, 0.5, 0.99, 1.0)] == [1, 2, 3, 5, 5]
