"""A measured model and its correction: bounded, following, and at rest where the machine is."""

import random
from itertools import pairwise
from math import exp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillion.scheduler.budget import LEAST_LEFT, Budget
from pillion.scheduler.correction import FAST, HIGH, LEAST, MOST, SLOW, Corrected, Quantile
from pillion.scheduler.cost import CostModel
from pillion.steptime import Curve, StepTime, Work

MODEL = StepTime(
    base=0.006, rows=Curve((16, 512), (0.002, 0.12)), sampled=Curve((1, 64), (0.002, 0.012)), pair=1.6e-7,
    context=6e-7,
)  # fmt: skip
SMALL, LARGE = Work(8, 8, 2400, 0, 0.0, 8), Work(256, 8, 2400, 1, 60_000.0, 9)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=200))
def test_no_step_moves_it_far_and_none_out_of_its_bounds(ratios):
    cost = Corrected(MODEL)
    for ratio in ratios:
        before = cost.factors
        cost.learn(LARGE, ratio * MODEL.seconds(LARGE))
        for old, new in zip(before, cost.factors, strict=True):
            assert LEAST <= new <= MOST
            assert abs(new / old - 1) <= exp(FAST) - 1 + 1e-9  # a hiccup of an hour, too
        assert cost.factors[0] <= cost.factors[1]


@pytest.mark.parametrize(("ratio", "bound"), [(1000.0, MOST), (0.001, LEAST)])
def test_what_is_further_off_than_the_bounds_stays_at_them(ratio, bound):
    cost = Corrected(MODEL)
    for _ in range(2000):
        cost.learn(LARGE, ratio * MODEL.seconds(LARGE))
    assert cost.factors == (bound, bound)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.55, 1.8), st.integers(0, 10_000), st.floats(0.0, 0.25))
def test_where_the_machine_is_at_rest_so_is_the_correction(slow, seed, noise):
    """It finds the machine from wherever it was, then stays within a few percent: it does not swing."""
    draw = random.Random(seed)
    cost = Corrected(MODEL)
    for _ in range(100):
        cost.learn(SMALL, MODEL.seconds(SMALL) / slow)  # another time, the machine was otherwise
    middles, highs = [], []
    for step in range(1500):
        cost.learn(LARGE, MODEL.seconds(LARGE) * slow * (1 + noise * draw.uniform(-1, 1)))
        if step >= 700:
            middles.append(cost.factors[0])
            highs.append(cost.factors[1])
    assert sum(middles) / len(middles) == pytest.approx(slow, rel=0.15)
    # Within what the machine itself does, and a step beyond.
    assert max(middles) < slow * (1 + noise) * exp(SLOW) and min(middles) > slow * (1 - noise) / exp(SLOW)
    assert min(highs) > 0.9 * slow and max(highs) <= min(slow * (1 + noise) * exp(FAST), MOST)


def test_the_high_one_is_what_one_in_twenty_exceeds():
    draw = random.Random(4)
    high, above = Quantile(HIGH, FAST), 0
    for step in range(20_000):
        ratio = 1 + draw.expovariate(5)
        if step >= 2000:
            above += ratio > high.value
        high.see(ratio)
    assert above / 18_000 == pytest.approx(0.05, abs=0.005)


@pytest.mark.parametrize("cost", [Corrected(MODEL), CostModel(16)])
def test_the_executors_wait_counts_for_streams_and_not_for_the_step(cost):
    for _ in range(300):
        cost.learn(LARGE, 0.1, 0.02)
    assert cost.predict(LARGE) == pytest.approx(0.1, rel=0.02)
    assert cost.bound(LARGE) == pytest.approx(0.12, rel=0.04)


def test_it_follows_a_machine_that_drifts_and_budgets_follow_it(toy):
    """A machine that becomes half as fast: within a few steps budgets shrink, and hold what they promise.

    It is as fast again: they grow, slowly. At no time does a budget swing between two steps.
    """
    budget = Budget(toy.settings(slo_tbt=0.1), toy.facts(max_step_tokens=512), MODEL)

    def run(steps, slow):
        taken = []
        for _ in range(steps):
            tokens = budget.allow(8, 2400, 0).tokens
            chunk = tokens - 8
            work = Work(tokens, 8, 2408, 1, chunk * chunk / 2, 8)
            seconds = slow * MODEL.seconds(work)
            budget.cost.learn(work, seconds)
            taken.append((tokens, seconds))
        return taken

    fast = run(200, 1.0)
    tile = toy.facts().tile
    assert all(seconds <= 0.1 for _, seconds in fast)
    drifting = [sample for step in range(100) for sample in run(1, 1 + step / 100)]
    assert sum(seconds > 0.105 for _, seconds in drifting) <= 2
    slow = run(200, 2.0)
    assert all(seconds <= 0.1 * 1.05 for _, seconds in slow)
    assert slow[-1][0] < 0.6 * fast[-1][0]
    again = run(2000, 1.0)
    assert again[-1][0] >= fast[-1][0] - tile
    for taken in (fast[50:], drifting, slow[50:], again):
        tokens = [tokens for tokens, _ in taken]
        assert max(abs(a - b) for a, b in pairwise(tokens)) <= 2 * tile


@pytest.mark.parametrize(("wrong", "steps"), [(10.0, 60), (0.1, 1500)])
def test_a_model_that_is_wrong_by_ten_times_keeps_the_target_and_lets_prompts_in(toy, wrong, steps):
    """`wrong`: how many times as long as it says a step takes. One that is too quick is found out at once, so
    that streams are late for a moment only; one that is too slow costs prompts some seconds.
    """
    settings, facts = toy.settings(slo_tbt=0.1), toy.facts(max_step_tokens=512)
    right = Budget(settings, facts, MODEL).allow(8, 2400, 0).tokens
    # The machine takes what MODEL says, and the file says less, or more.
    file = StepTime(
        base=MODEL.base / wrong,
        rows=Curve(MODEL.rows.at, tuple(seconds / wrong for seconds in MODEL.rows.seconds)),
        sampled=Curve(MODEL.sampled.at, tuple(seconds / wrong for seconds in MODEL.sampled.seconds)),
        pair=MODEL.pair / wrong,
        context=MODEL.context / wrong,
    )
    budget = Budget(settings, facts, file)
    assert budget.allow(8, 2400, 0).tokens == pytest.approx(512 if wrong > 1 else 16, abs=32)
    taken = []
    for _ in range(steps + 200):
        tokens = budget.allow(8, 2400, 0).tokens
        chunk = tokens - 8
        work = Work(tokens, 8, 2408, 1, chunk * chunk / 2, 8)
        taken.append((tokens, MODEL.seconds(work)))
        budget.cost.learn(work, MODEL.seconds(work))
    assert all(seconds <= 0.1 * 1.05 for _, seconds in taken[steps:])
    assert min(tokens for tokens, _ in taken[steps:]) >= 0.8 * right


def test_the_largest_tile_multiple_that_is_seldom_late(toy):
    budget = Budget(toy.settings(slo_tbt=0.1), toy.facts(max_step_tokens=512), MODEL)

    def bound(rows, decodes=20, context=9000, start=500):
        chunk = rows - decodes
        return budget.cost.bound(
            Work(rows, decodes, context + decodes, 1, chunk * (start + chunk / 2), decodes)
        )

    for _ in range(60):
        budget.cost.learn(LARGE, 1.2 * MODEL.seconds(LARGE))
    tokens = budget.allow(20, 9000, 500).tokens
    assert tokens % 16 == 0 and bound(tokens) <= 0.1 < bound(tokens + 16)
    # Before any step it is believed; with nobody to protect it is wide open.
    fresh = Budget(toy.settings(slo_tbt=0.1), toy.facts(max_step_tokens=512), MODEL)
    assert fresh.cost.known
    assert fresh.allow(0, 0, 0).tokens > fresh.allow(1, 100, 0).tokens > 0


def test_who_is_late_gets_a_shorter_step_and_prompts_go_on(toy):
    budget = Budget(toy.settings(slo_tbt=0.1), toy.facts(max_step_tokens=512), MODEL)
    tokens = {}
    for left in (5.0, 0.1, 0.07, 0.05, 0.0, -3.0):
        budget.hurry(left)
        tokens[left] = budget.allow(8, 2400, 0).tokens
    assert tokens[5.0] == tokens[0.1] > tokens[0.07] > tokens[0.05] == tokens[0.0] == tokens[-3.0] > 8 + 16
    assert budget.cost.bound(Work(tokens[-3.0], 8, 2408, 1, 0.0, 8)) <= LEAST_LEFT * 0.1
    # What full steps carry is told to admission, whoever is late now.
    assert budget.full(8, 2400) == Budget(
        toy.settings(slo_tbt=0.1), toy.facts(max_step_tokens=512), MODEL
    ).full(8, 2400)
