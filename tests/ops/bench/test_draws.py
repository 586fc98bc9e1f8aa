"""Lengths, prompts and arrival times: the seed's, and distributed as they say."""

import itertools
import random

import pytest

from pillion.ops.bench.draws import CHATS, IDS, SUMMARIES, Lengths, arrivals, percentile, prompt


def test_percentile_is_the_nearest_rank():
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [percentile(values, share) for share in (0.2, 0.21, 0.5, 0.99, 1.0)] == [1, 2, 3, 5, 5]


def test_lengths_have_their_median_and_p90_and_are_clipped():
    random_ = random.Random(1)
    drawn = [Lengths(170, 500, 8, 1500).draw(random_) for _ in range(4000)]
    assert percentile(drawn, 0.5) == pytest.approx(170, rel=0.06)
    assert percentile(drawn, 0.9) == pytest.approx(500, rel=0.08)
    assert min(drawn) >= 8 and max(drawn) == 1500  # of 4000, forty would be longer


def test_no_request_is_longer_than_the_smallest_model_takes():
    assert max(shape.prompt.high + shape.output.high for shape in (CHATS, SUMMARIES)) <= 2048


def test_prompts_are_ordinary_tokens_of_the_seed():
    drawn = prompt(random.Random(1), 1000)
    assert drawn == prompt(random.Random(1), 1000) != prompt(random.Random(2), 1000)
    assert len(drawn) == 1000 and set(drawn) <= set(IDS)


def test_arrivals_are_the_seed_s_and_a_poisson_process():
    drawn = arrivals(random.Random(1), 20.0, 100.0, CHATS)
    assert drawn == arrivals(random.Random(1), 20.0, 100.0, CHATS)
    assert drawn != arrivals(random.Random(2), 20.0, 100.0, CHATS)
    assert len(drawn) == pytest.approx(2000, rel=0.1)
    gaps = [b.at - a.at for a, b in itertools.pairwise(drawn)]
    mean = sum(gaps) / len(gaps)
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert spread == pytest.approx(mean, rel=0.15)  # as of exponential gaps
    assert 0 < drawn[0].at < drawn[-1].at < 100
