"""A cost model of the executor alone becomes that of one that serves."""

import random
from pathlib import Path

import pytest

from pillion.config import Scheduler
from pillion.contracts.entries import Request, Sampling
from pillion.ops.profile.served import Step, fitted, read, way
from pillion.scheduler.messages import Plan, RowResult, SendPlan, StepDone, Submitted, Take
from pillion.scheduler.recorded import MAGIC, Header, end, entry, frame
from pillion.steptime import Curve, StepTime, Ways, Work

ALONE = StepTime(
    base=0.006, rows=Curve((32, 512), (0.001, 0.1)), sampled=Curve((1, 64), (0.002, 0.01)), pair=2e-8
)


def request(number: int) -> Request:
    return Request(
        id=str(number), gateway="g", model="m", prompts=((1,) * 40,), sampling=Sampling(seed=0), arrival=0.0
    )


def plan(step: int, *, decodes: int, chunk: int = 0, take: Take | None = None, steps: int = 1) -> Plan:
    rows = decodes + bool(chunk)
    return Plan(
        step=step,
        release=(),
        take=(take,) if take else (),
        slots=tuple(range(rows)),
        starts=(100,) * decodes + (0,) * bool(chunk),
        counts=(1,) * decodes + ((chunk,) if chunk else ()),
        samples=(steps,) * rows,
        block_counts=(0,) * rows,
        blocks=(),
        decodes=decodes,
        budget=512,
    )


def recording(folder: Path, entries: list) -> None:
    header = Header("1.0", "0", 1e9, Scheduler())
    (folder / "scheduler-0-1.rec").write_bytes(MAGIC + frame(header) + frame([*entries, end(9.0, "over")]))


def test_steps_and_first_tokens_are_read_from_a_recording(tmp_path):
    take = Take(0, 7, request(0), 0, (1,) * 40, 40, (), 5)
    first, several = plan(1, decodes=0, chunk=40, take=take), plan(2, decodes=1, steps=3)
    recording(
        tmp_path,
        [
            entry(Submitted(request(0)), 1.0, [SendPlan(first)]),
            entry(Submitted(request(1)), 1.1, []),
            entry(StepDone(1, (RowResult(0, 7, (5,)),), 0.25), 1.5, [SendPlan(several)]),
            entry(StepDone(2, (RowResult(0, 7, (5, 6, 7)),), 0.6, steps=3), 2.1, []),
        ],
    )
    found = read(tmp_path)
    # Plans of several steps tell nothing of one; who got no token yet has no first.
    assert found.steps == [Step(Work(40, chunks=1, pairs=800.0, sampled=1), 0.25, 1.5)]
    assert found.firsts == [0.5, None]


def test_the_fit_finds_what_serving_adds():
    draw = random.Random(1)
    works = [
        Work(
            rows=(decodes := draw.randrange(1, 33)) + (chunk := draw.choice((0, 0, 64, 128))),
            decodes=decodes, context=200 * decodes, chunks=bool(chunk), pairs=100.0 * chunk, sampled=decodes,
        )
        for _ in range(400)
    ]  # fmt: skip
    times = [1.2 * ALONE.seconds(work) + 0.002 + 0.0001 * work.sampled for work in works]
    # One step in twenty is held up: the fit goes by the others, a simulation draws those too.
    steps = [
        Step(work, seconds * (3 if at % 20 == 0 else 1), float(at))
        for at, (work, seconds) in enumerate(zip(works, times, strict=True))
    ]
    model = fitted(ALONE, steps, Ways(inward=0.004))
    for work in works[:50]:
        wanted = 1.2 * ALONE.seconds(work) + 0.002 + 0.0001 * work.sampled
        assert model.seconds(work) == pytest.approx(wanted, rel=0.02)
    assert model.ways.inward == 0.004 and model.provenance == ALONE.provenance
    assert model.ratios[50] == pytest.approx(1.0, rel=0.02) and model.ratios[-1] == pytest.approx(3, rel=0.05)


def test_the_way_is_what_the_schedulers_own_time_lacks():
    assert way([0.1, 0.2, 0.9, 0.5], [0.09, None, 0.88, 0.4]) == pytest.approx(0.02)
