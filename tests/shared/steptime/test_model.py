from dataclasses import fields, replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillion.steptime import CostModelError, Curve, Error, Provenance, StepTime, Ways, Work, load, save

AMOUNT = st.floats(0, 10)


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    at = sorted(draw(st.sets(st.integers(1, 5000), max_size=6)))
    steps = draw(st.lists(AMOUNT, min_size=len(at), max_size=len(at)))
    return Curve(tuple(at), tuple(sum(steps[: index + 1]) for index in range(len(at))))


MODELS = st.builds(
    StepTime,
    base=AMOUNT,
    rows=curves(),
    tile=st.integers(1, 256),
    tile_seconds=AMOUNT,
    sampled=curves(),
    pair=AMOUNT,
    context=AMOUNT,
    decode=AMOUNT,
    chunk=AMOUNT,
    ratios=st.lists(AMOUNT, max_size=5).map(tuple),
    error=st.builds(Error, median=AMOUNT),
    ways=st.builds(Ways, gap=AMOUNT),
    provenance=st.builds(Provenance, model=st.text(max_size=8), seed=st.integers(0, 9)),
)
WORKS = st.builds(Work, *(st.integers(0, 6000) for _ in fields(Work)))

MODEL = StepTime(
    base=0.001,
    rows=Curve((1, 32, 512), (0.002, 0.002, 0.026)),
    tile=32,
    tile_seconds=0.0005,
    sampled=Curve((1, 64), (0.003, 0.0093)),
    pair=1e-8,
    context=1e-7,
    decode=1e-5,
    chunk=1e-4,
)


@given(MODELS, WORKS, st.sampled_from([field.name for field in fields(Work)]), st.integers(0, 3000))
def test_no_time_is_negative_and_more_work_never_takes_less(
    model: StepTime, work: Work, field: str, more: int
) -> None:
    larger = replace(work, **{field: getattr(work, field) + more})
    # Sums of floats in one order: equal terms give equal sums.
    assert 0 <= model.seconds(work) <= model.seconds(larger) * (1 + 1e-12)


def test_the_terms_add_up() -> None:
    work = Work(rows=66, decodes=2, context=2000, chunks=1, pairs=64 * 32.0, sampled=22)
    rows = 0.002 + (66 - 32) * 0.024 / 480
    sampled = 0.003 + 21 * 0.0063 / 63
    expected = 0.001 + rows + 3 * 0.0005 + sampled + 2048e-8 + 2000e-7 + 2e-5 + 1e-4
    assert MODEL.seconds(work) == pytest.approx(expected)
    # Behind its last point a curve goes on as before it.
    assert MODEL.rows(1024) == pytest.approx(0.026 + 512 * 0.024 / 480)
    assert Curve((4,), (1.0,))(2) == pytest.approx(0.5)
    assert Curve((4,), (1.0,))(8) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("at", "seconds"), [((1, 2), (1.0,)), ((2, 2), (1.0, 2.0)), ((0,), (1.0,)), ((1, 2), (2.0, 1.0))]
)
def test_a_curve_that_falls_is_none(at: tuple[int, ...], seconds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"curve|sizes"):
        Curve(at, seconds)


@given(MODELS)
def test_a_file_gives_back_what_was_saved(tmp_path_factory: pytest.TempPathFactory, model: StepTime) -> None:
    path = tmp_path_factory.mktemp("steptime") / "deep" / "model.json"
    save(model, path)
    again = load(path)
    assert again == model
    assert again.hash == model.hash


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    save(MODEL, path)
    text = path.read_text()
    assert '"base": 0.001' in text
    path.write_text(text.replace('"base": 0.001', '"base": 0.0011'))
    with pytest.raises(CostModelError, match="its hash differs; `pillion profile` makes it again"):
        load(path)


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    with pytest.raises(CostModelError, match=r"No such file.*`pillion profile` makes one"):
        load(path)
    for text, why in (
        ("{", "is no cost model"),
        ("{}", "is no cost model"),
        ('{"v": 2}', "has schema 2, this release reads 1"),
        ('{"v": 1, "hash": "", "cost_model": {"base": -1}}', "is no cost model.*cost_model.base"),
        ('{"v": 1, "hash": "", "cost_model": {"rows": {"at": [2, 1], "seconds": [1, 2]}}}', "do not rise"),
        ('{"v": 1, "hash": "", "cost_model": {"speed": 1}}', "is no cost model.*speed"),
    ):
        path.write_text(text)
        with pytest.raises(CostModelError, match=why):
            load(path)


def test_the_hash_names_the_whole_model() -> None:
    assert MODEL.hash == StepTime(**{name: getattr(MODEL, name) for name in MODEL.__struct_fields__}).hash
    for changed in (
        msgspec.structs.replace(MODEL, pair=2e-8),
        msgspec.structs.replace(MODEL, provenance=Provenance(seed=1)),
        msgspec.structs.replace(MODEL, error=Error(median=0.01)),
    ):
        assert changed.hash != MODEL.hash
