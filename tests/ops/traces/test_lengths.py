"""Lengths have the figures that they were fitted to."""

import random
import statistics

import pytest

from pillion.ops.traces import LENGTHS, Arrival, Between, Lengths, Rows, Shape
from pillion.ops.traces.lengths import CHATS, SUMMARIES

PUBLISHED = {  # prompt median and P90, output median and P90
    "openchat_sharegpt4": (1730, 5696, 415, 834),
    "arxiv_summarization": (7059, 12_985, 208, 371),
    "azure_conversation": (1020, 2735, 129, 424),
    "azure_code": (1469, 5194, 13, 55),
}


def drawn(name: str, count: int = 20_000) -> list[Arrival]:
    random_ = random.Random(1)
    return [LENGTHS[name].draw(random_) for _ in range(count)]


def median_and_p90(values: list[int]) -> tuple[int, int]:
    ordered = sorted(values)
    return ordered[len(ordered) // 2], ordered[len(ordered) * 9 // 10]


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_medians_and_p90(name):
    found = drawn(name)
    figures = (*median_and_p90([one.prompt for one in found]), *median_and_p90([one.output for one in found]))
    # 13 tokens are few: half a token is 4 %.
    assert figures == pytest.approx(PUBLISHED[name], rel=0.03, abs=1)
    assert found == drawn(name)


@pytest.mark.parametrize(("name", "total", "deviation"), [
    ("openchat_sharegpt4", 8192, 2088), ("arxiv_summarization", 16_384, 3638),
])  # fmt: skip
def test_the_published_totals_and_deviations(name, total, deviation):
    found = drawn(name)
    longest = max(one.prompt + one.output for one in found)
    assert 0.99 * total < longest <= total
    assert statistics.pstdev(one.prompt for one in found) == pytest.approx(deviation, rel=0.04)


def test_the_loads_of_the_split_and_fuse_article():
    found = drawn("split_fuse_a", 5000)
    prompts = [one.prompt for one in found]
    assert (min(prompts), max(prompts)) == (50, 500) and statistics.mean(prompts) == pytest.approx(
        275, rel=0.02
    )
    assert {one.output for one in found} == {100}
    assert statistics.mean(one.prompt for one in drawn("split_fuse_b", 5000)) == pytest.approx(100, rel=0.02)


def test_lengths_have_their_median_and_p90_and_are_clipped():
    random_ = random.Random(1)
    found = [Lengths(170, 500, 8, 1500).draw(random_) for _ in range(4000)]
    assert median_and_p90(found) == pytest.approx((170, 500), rel=0.08)
    assert min(found) >= 8 and max(found) == 1500  # of 4000, forty would be longer


def test_no_request_is_longer_than_the_smallest_model_takes():
    assert max(shape.prompt.high + shape.output.high for shape in (CHATS, SUMMARIES)) <= 2048


def test_a_total_that_nothing_keeps_is_said():
    with pytest.raises(ValueError, match="more than 99 tokens"):
        Shape(Between(50, 60), Between(50, 60), total=99)


def test_rows_of_a_trace_keep_all_but_their_time():
    trace = [Arrival(5.0, 10, 2, group=1, prefix=4, priority=2, tenant="a"), Arrival(7.0, 20, 3)]
    random_ = random.Random(1)
    found = [Rows(trace).draw(random_) for _ in range(40)]
    assert set(found) == {Arrival(0.0, 10, 2, group=1, prefix=4, priority=2, tenant="a"), Arrival(0.0, 20, 3)}
