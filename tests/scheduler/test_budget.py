"""The cost model learns a step's time, and the budget follows from it."""

import random

import pytest

from pillion.scheduler.budget import Allowance, Budget
from pillion.scheduler.cost import CostModel
from pillion.steptime import Work

DECODES = Work(3, decodes=3, context=900, sampled=3)


def work(rows, decodes=0, context=0, start=0):
    chunk = rows - decodes
    return Work(rows, decodes, context + decodes, 1, chunk * (start + chunk / 2), decodes)


def true_time(rows, pairs, tile=16):
    return 0.004 + 0.0002 * (-(-rows // tile) * tile) + 2e-8 * pairs


def steps(count, seed=1):
    draw = random.Random(seed)
    for _ in range(count):
        yield draw.randrange(1, 512), draw.randrange(0, 400_000)


def taught(model, count=60, noise=0.0):
    draw = random.Random(3)
    for rows, pairs in steps(count):
        model.learn(Work(rows, pairs=pairs), true_time(rows, pairs) * (1 + noise * draw.uniform(-1, 1)))
    return model


def test_it_learns_base_rows_and_attention():
    model = taught(CostModel(16), noise=0.05)
    for rows, pairs in steps(50, seed=9):
        assert model.predict(Work(rows, pairs=pairs)) == pytest.approx(true_time(rows, pairs), rel=0.08)
    assert taught(CostModel(16)).coefficients == taught(CostModel(16)).coefficients


def test_it_tells_what_decodes_read_from_what_chunks_reckon():
    model, draw = CostModel(16), random.Random(5)
    for _ in range(80):
        context, pairs = draw.randrange(400_000), draw.randrange(10_000_000)
        model.learn(Work(64, context=context, pairs=pairs), 0.01 + 8e-8 * context + 3e-9 * pairs)
    assert model.predict(Work(64, context=300_000)) == pytest.approx(0.034, rel=0.05)
    assert model.predict(Work(64, pairs=6_000_000)) == pytest.approx(0.028, rel=0.05)


def test_a_learned_budget_is_of_what_one_in_twenty_exceeds():
    model, draw, above = CostModel(16), random.Random(6), 0
    for number in range(2000):
        seconds = 0.02 * (1 + draw.expovariate(5))
        above += number >= 200 and seconds > model.bound(Work(64))
        model.learn(Work(64), seconds)
    assert 0.03 < above / 1800 < 0.07
    assert model.factors == (1.0, model.bound(Work(64)) / model.predict(Work(64)))


def test_it_follows_a_change_and_shrugs_at_a_hiccup():
    model = taught(CostModel(16))
    before = model.predict(Work(256))
    model.learn(Work(256), 30.0)
    assert model.predict(Work(256)) < 2 * before
    for rows, pairs in steps(300, seed=4):
        model.learn(Work(rows, pairs=pairs), 5 * true_time(rows, pairs))
    assert model.predict(Work(256)) == pytest.approx(5 * true_time(256, 0), rel=0.1)


def test_no_coefficient_goes_below_zero():
    model = CostModel(1)
    for rows in (400, 300, 200, 100, 10) * 20:
        model.learn(Work(rows, pairs=1e6 / rows), 0.5 / rows)  # the fewer rows the slower
    assert min(model.coefficients) >= 0
    assert all(model.predict(Work(rows, pairs=pairs)) >= 0 for rows, pairs in steps(20))


def budget(toy, options=None, executor=None):
    made = Budget(toy.settings(**(options or {})), toy.facts(**(executor or {})))
    taught(made.cost)
    return made


def test_the_largest_tile_multiple_that_keeps_the_target(toy):
    made = budget(toy, {"slo_tbt": 0.05})
    for decodes, context, start in ((1, 100, 0), (20, 4000, 500), (100, 100_000, 3000)):
        tokens = made.allow(decodes, context, start).tokens

        def predicted(rows, decodes=decodes, context=context, start=start):
            return made.cost.predict(work(rows, decodes, context, start))

        assert tokens % 16 == 0 and 16 < tokens < 512
        assert predicted(tokens) <= 0.05 < predicted(tokens + 16)


def test_an_explicit_budget_is_the_budget(toy):
    """The default target limits only who named neither; whoever named both gets both."""

    def allowed(cap, target, decodes=8):
        made = budget(toy, {"max_num_batched_tokens": cap, "slo_tbt": target})
        return made.allow(decodes, 4000, 500).tokens

    assert true_time(512, 0) > 0.1
    assert allowed(512, None) == allowed(512, None, decodes=0) == 512
    assert allowed(512, 0.05) < allowed(None, None) < 512


def test_it_grows_with_no_decode_to_protect(toy):
    made = budget(toy, {"slo_tbt": 0.05})
    alone, protecting = made.allow(0, 0, 0).tokens, made.allow(1, 0, 0).tokens
    assert made.cost.predict(work(protecting, 1, 0)) < 0.05 < made.cost.predict(work(alone)) <= 0.1
    assert budget(toy, {"slo_tbt": 0.05, "max_step_seconds": 0.06}).allow(0, 0, 0).tokens < alone


def test_caps(toy):
    assert budget(toy, {"max_num_batched_tokens": 100, "slo_tbt": 9}).allow(1, 0, 0).tokens == 96
    assert budget(toy, {"slo_tbt": 9}, {"max_step_tokens": 72}).allow(1, 0, 0).tokens == 64
    assert budget(toy, {"max_num_batched_tokens": 5}).allow(1, 0, 0).tokens == 5


@pytest.mark.parametrize(
    ("guard", "decodes", "expected"),
    [
        ("stretch", 50, Allowance(64, 50)),  # 8 of 64 are left for prompts anyhow
        ("stretch", 57, Allowance(80, 57)),  # 57 + 8, rounded up to the tile
        ("turns", 57, Allowance(64, 56)),
        ("stretch", 200, Allowance(208, 200)),
        ("turns", 200, Allowance(64, 56)),
    ],
)
def test_the_minimum_share_of_prompts(toy, guard, decodes, expected):
    made = budget(toy, {"max_num_batched_tokens": 64, "prefill_guard": guard, "slo_tbt": 9})
    assert made.allow(decodes, 0, 0) == expected
    assert made.allow(decodes, 0, None) == Allowance(max(decodes, 64), decodes)


def test_the_share_holds_against_a_target_that_cannot_be_kept(toy):
    made = budget(toy, {"slo_tbt": 0.001})
    allowed = made.allow(40, 0, 0)
    assert allowed.decodes == 40 and allowed.tokens - 40 >= 2


def test_nothing_exceeds_the_executors_limit(toy):
    made = budget(toy, {"slo_tbt": 9}, {"max_step_tokens": 32})
    assert made.allow(100, 0, None) == Allowance(32, 32)
    assert made.allow(100, 0, 0) == Allowance(32, 28)


def test_how_many_steps_of_decodes_fit(toy):
    made = budget(toy, {"multi_step_seconds": 0.06})
    step = made.cost.predict(DECODES)
    assert 0.005 < step < 0.02
    assert made.steps(DECODES, 0.0) == int(0.06 / step) > 2
    assert made.steps(DECODES, step) == made.steps(DECODES, 0.0) - 1
    assert made.steps(DECODES, 1.0) == 1  # one is always granted
    assert budget(toy, {"multi_step_seconds": 0.06, "slo_tbt": 2.5 * step}).steps(DECODES, 0.0) == 2
    assert budget(toy, {"multi_step_seconds": 0.0}).steps(DECODES, 0.0) == 1
    assert (
        Budget(toy.settings(multi_step_seconds=9.0), toy.facts()).steps(DECODES, 0.0) == 1
    )  # nothing learned
