"""The fit finds what made the times, and never a model that falls."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillion.ops.profile.fit import Measured, error, fit, nonnegative, ratios
from pillion.ops.profile.shapes import Limits, axes, fits, mixes, sizes
from pillion.steptime import Curve, StepTime, Work

LIMITS = Limits(rows=512, slots=64, length=2048, positions=16_384, block=32, tile=16)
TRUE = StepTime(
    base=0.006,
    rows=Curve((32, 512), (0.001, 0.1)),
    tile=16,
    tile_seconds=0.0004,
    sampled=Curve((1, 64), (0.002, 0.01)),
    pair=2e-8,
    context=3e-7,
    decode=2e-5,
    chunk=1e-4,
)


def measured(model, shapes, noise=0.0, seed=1, repeats=9):
    draw = np.random.default_rng(seed)
    return [
        Measured(
            shape.work,
            tuple(model.seconds(shape.work) * (1 + noise * np.abs(draw.standard_normal(repeats)))),
        )
        for shape in shapes
    ]


def test_it_finds_the_model_that_made_the_times():
    seen = measured(TRUE, axes(LIMITS) + mixes(LIMITS, 60, 1))
    held = measured(TRUE, mixes(LIMITS, 100, 2))
    model = fit(seen, sizes(LIMITS), LIMITS.tile)
    found = error(model, held, seen)
    assert found.steps == 100 and found.p95 < 0.01 and found.spread == 0
    assert model.pair == pytest.approx(TRUE.pair, rel=0.05)
    assert model.context == pytest.approx(TRUE.context, rel=0.05)
    # The tile's step is there, and so is what the first sampled row costs.
    step = model.seconds(Work(17, chunks=1)) - model.seconds(Work(16, chunks=1))
    assert step == pytest.approx(TRUE.seconds(Work(17, chunks=1)) - TRUE.seconds(Work(16, chunks=1)), rel=0.3)


def test_a_shared_machine_disturbs_it_little():
    """One repeat in five takes three times as long; medians are what is fitted and compared."""
    draw = np.random.default_rng(7)

    def shared(shapes):
        return [
            Measured(
                step.work,
                tuple(t * (3 if draw.random() < 0.2 else 1 + 0.05 * draw.random()) for t in step.seconds),
            )
            for step in measured(TRUE, shapes)
        ]

    seen, held = shared(axes(LIMITS) + mixes(LIMITS, 60, 1)), shared(mixes(LIMITS, 60, 2))
    model = fit(seen, sizes(LIMITS), LIMITS.tile)
    found = error(model, held, seen)
    assert found.median < 0.03 and found.p95 < 0.1
    assert found.spread > 0.5  # and it is said
    spread = ratios(model, held)
    assert len(spread) == 101 and spread == tuple(sorted(spread))
    assert spread[50] == pytest.approx(1.0, abs=0.05) and spread[95] > 2


def test_steps_that_were_disturbed_each_time_do_not_bend_it():
    seen = measured(TRUE, axes(LIMITS) + mixes(LIMITS, 60, 1))
    for at in range(0, len(seen), 8):
        seen[at] = Measured(seen[at].work, tuple(3 * seconds for seconds in seen[at].seconds))
    held = measured(TRUE, mixes(LIMITS, 60, 2))
    found = error(fit(seen, sizes(LIMITS), LIMITS.tile), held, seen)
    assert found.median < 0.01 and found.p95 < 0.05


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_whatever_is_measured_the_model_neither_falls_nor_goes_below_zero(seed):
    draw = np.random.default_rng(seed)
    steps = [
        Measured(shape.work, (float(draw.exponential(0.05)) + 1e-4,))
        for shape in axes(LIMITS)[::3] + mixes(LIMITS, 10, seed)
    ]
    model = fit(
        steps, sizes(LIMITS), LIMITS.tile
    )  # its fields refuse what is negative, its curves what falls
    assert (
        model.seconds(Work(1)) <= model.seconds(Work(512)) <= model.seconds(Work(512, 64, 9999, 1, 1e6, 64))
    )


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 12), st.integers(1, 8), st.integers(0, 10_000))
def test_the_least_squares_are_the_least(rows, columns, seed):
    """The conditions of Karush, Kuhn and Tucker: no allowed direction leads farther down."""
    draw = np.random.default_rng(seed)
    matrix, vector = draw.standard_normal((rows, columns)), draw.standard_normal(rows)
    x = nonnegative(matrix, vector)
    down = matrix.T @ (vector - matrix @ x)
    assert (x >= 0).all()
    assert (down <= 1e-6).all()
    assert np.abs(down[x > 1e-9]).max(initial=0.0) < 1e-6


def test_what_is_measured_fits_the_executor_and_is_the_same_for_a_seed():
    shapes = axes(LIMITS) + mixes(LIMITS, 80, 3)
    assert all(fits(shape, LIMITS) for shape in shapes)
    assert mixes(LIMITS, 80, 3) == mixes(LIMITS, 80, 3) != mixes(LIMITS, 80, 4)
    works = [shape.work for shape in mixes(LIMITS, 80, 3)]
    assert len(works) == 80
    assert max(work.rows for work in works) > 300 and min(work.rows for work in works) < 20
    assert any(work.chunks > 1 for work in works) and any(not work.chunks for work in works)
    assert any(not work.decodes for work in works) and any(work.pairs > work.rows * 512 for work in works)
    small = Limits(rows=8, slots=2, length=40, positions=64, block=16, tile=16)
    assert {shape.work.rows for shape in axes(small)} >= {1, 2, 8}
    assert all(fits(shape, small) for shape in axes(small) + mixes(small, 20, 1))
