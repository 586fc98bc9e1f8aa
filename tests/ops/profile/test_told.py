"""A profile's report tells what was measured beside what the model says, and what that is a sum of."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillion.ops.profile import served
from pillion.ops.profile.fit import Measured, error, ratios
from pillion.ops.profile.run import Profile, Step
from pillion.ops.profile.serve import Fit
from pillion.ops.profile.shapes import Limits, axes, mixes
from pillion.ops.profile.told import DEFINITIONS, KINDS, kind, report, terms
from pillion.ops.report import read, write
from pillion.steptime import Curve, Provenance, StepTime, Ways, Work

LIMITS = Limits(rows=512, slots=64, length=2048, positions=16_384, block=32, tile=16)
MODEL = StepTime(
    base=0.006,
    rows=Curve((32, 512), (0.001, 0.1)),
    tile=16,
    tile_seconds=0.0004,
    sampled=Curve((1, 64), (0.002, 0.01)),
    pair=2e-8,
    context=3e-7,
    decode=2e-5,
    chunk=1e-4,
    ways=Ways(gap=0.0001, turn=0.001),
    provenance=Provenance(model="demo"),
)


def profiled(off):
    """Steps of the axes take what the model says, those held out `off` times as long."""
    steps = [Step(shape, False, [MODEL.seconds(shape.work)] * 3) for shape in axes(LIMITS)]
    steps += [Step(shape, True, [off * MODEL.seconds(shape.work)] * 3) for shape in mixes(LIMITS, 30, 1)]
    held = [Measured(step.shape.work, tuple(step.seconds)) for step in steps if step.held]
    model = msgspec.structs.replace(MODEL, error=error(MODEL, held, held), ratios=ratios(MODEL, held))
    return Profile(model, tuple(steps), 3, 16_384)


@given(st.builds(Work, *[st.integers(0, 600)] * 4, st.floats(0, 1e6), st.integers(0, 600)))
def test_the_terms_are_the_whole_prediction(work):
    assert sum(terms(MODEL, work).values()) == pytest.approx(MODEL.seconds(work))


def test_what_was_measured_stands_beside_what_was_predicted(tmp_path):
    made = report(profiled(1.05), None)
    figures = {one.name: one.values for one in made.summary}
    assert figures["error held out, median"] == [pytest.approx(0.05 / 1.05)]
    assert figures["error fitted, median"] == [0.0] and not made.notes
    against, left, tiles, parts = made.plots
    assert [len(series.points) for series in against.series] == [len(axes(LIMITS)), 30]
    assert all(b == pytest.approx(1.05 * a) for a, b in against.series[1].points)
    kinds = {kind(shape.work) for shape in (*axes(LIMITS), *mixes(LIMITS, 30, 1))}
    assert [series.name for series in left.series] == [name for name in KINDS if name in kinds] and len(
        kinds
    ) > 2
    # The tiles' steps: the model at every number of rows, and those that were measured on its line.
    for line, dots in zip(tiles.series[::2], tiles.series[1::2], strict=True):
        assert [x for x, _ in line.points] == [float(rows) for rows in range(1, 129)]
        model = dict(line.points)  # a mix that was held out may be a prompt alone
        off = [seconds / model[rows] for rows, seconds in dots.points]
        assert len(off) > 10 and sum(ratio == pytest.approx(1.0) for ratio in off) >= len(off) - 1
    assert tiles.series[0].points[16][1] - tiles.series[0].points[15][1] > 0.0004
    # What a prompt's step is made of comes to its time.
    rows, seconds = parts.rows[-1]
    assert sum(seconds) == pytest.approx(MODEL.seconds(Work(512, chunks=1, pairs=512 * 256.0)))
    assert rows == 512.0 and "attention of decodes" not in parts.names
    table = made.tables[1]
    assert all(sum(row[2:]) == pytest.approx(1.0) for row in table.rows)
    assert made.definitions == DEFINITIONS and made.provenance["cost model"] == made.raw["cost_model"]
    write(made, tmp_path / "made")
    assert read(tmp_path / "made.json") == made


def test_steps_of_a_stack_that_serves_are_told_of_too():
    slow = msgspec.structs.replace(MODEL, base=0.012)
    steps = [served.Step(shape.work, slow.seconds(shape.work), 0.0) for shape in mixes(LIMITS, 900, 2)]
    made = report(profiled(1.3), Fit(slow, steps, 1.4, 1.0))
    *_, against, shares = made.plots
    assert sum(len(series.points) for series in against.series) == 300  # of 900, none of which is shown alone
    alone, by_alone, own = ({share: ratio for ratio, share in series.points} for series in shares.series)
    assert alone[0.5] == pytest.approx(1.3) and own[0.5] == pytest.approx(1.0) and by_alone[0.5] > 1.01
    assert made.raw["cost_model"] == slow.hash
    # A machine that was not free is said.
    assert len(made.notes) == 1 and "was the machine free" in made.notes[0]
