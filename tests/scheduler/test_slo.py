"""The budget follows from the target, a measured cost model, and what each stream has left."""

from itertools import pairwise

import msgspec
import pytest

from pillion.config import ConfigError, load
from pillion.scheduler import recorded
from pillion.scheduler.budget import Budget
from pillion.scheduler.measured import Measured
from pillion.scheduler.messages import Connected
from pillion.scheduler.work import work_of
from pillion.steptime import Curve, Provenance, StepTime, save
from pillion.steptime.place import hardware, place

TARGET = 0.1
MODEL = StepTime(
    base=0.006, rows=Curve((16, 512), (0.002, 0.12)), sampled=Curve((1, 64), (0.002, 0.012)), pair=1.6e-7,
    context=6e-7, provenance=Provenance(model="toy", fingerprint="toy", threads=2),
)  # fmt: skip


def driven(make, slow, **options):
    """Six streams that decode while long prompts arrive, on a machine so much slower than the model says."""
    drive = make(
        {"slo_tbt": TARGET, **options},
        {"max_step_tokens": 512},
        lambda plan: slow * MODEL.seconds(work_of(plan)),
        connect=False,
    )
    drive.connect(measured=MODEL)
    return drive


@pytest.mark.parametrize("slow", [0.7, 1.0, 1.6])
def test_streams_keep_the_target_and_prompts_get_what_is_left(make, toy, slow):
    drive = driven(make, slow)
    drive.submit(
        *(toy.request(f"s{i}", toy.prompt(40, i), max_tokens=400, ignore_eos=True) for i in range(6))
    )
    drive.until(1.0)
    learned = drive.now
    for number in range(8):
        drive.submit(toy.request(f"p{number}", toy.prompt(1500, 50 + number), max_tokens=2))
        drive.until(drive.now + 0.8)
    drive.run()
    drive.check_outputs()
    gaps = [
        later - sooner
        for i in range(6)
        for sooner, later in pairwise(drive.times[f"s{i}", 0])
        if later > learned + 1.0
    ]
    assert len(gaps) > 100 and max(gaps) <= TARGET * 1.02
    # The target is used: steps with prompts are as long as they may be, nearly.
    full = [gap for gap in gaps if gap > 0.75 * TARGET]
    assert len(full) > 15
    snapshot = drive.core.snapshot()
    assert snapshot.cost_model == MODEL.hash
    assert snapshot.factors == pytest.approx((slow, slow), rel=0.06)


def test_who_had_to_wait_has_less_left(make, toy, monkeypatch):
    """Decodes that take turns wait a step; the next one is then to be over by when their token is due."""
    lefts = []
    hurry = Budget.hurry

    def watched(budget, left):
        lefts.append(left)
        hurry(budget, left)

    monkeypatch.setattr(Budget, "hurry", watched)
    drive = driven(make, 1.0, max_num_batched_tokens=32, prefill_guard="turns")
    drive.submit(
        *(toy.request(f"s{i}", toy.prompt(10, i), max_tokens=150, ignore_eos=True) for i in range(20))
    )
    drive.until(0.5)
    assert set(lefts) == {TARGET}  # all ride in each step
    lefts.clear()
    drive.submit(
        *(toy.request(f"t{i}", toy.prompt(10, 90 + i), max_tokens=150, ignore_eos=True) for i in range(20)),
        toy.request("p", toy.prompt(900, 7), max_tokens=2),
    )
    drive.run()
    drive.check_outputs()
    steps = [MODEL.seconds(work_of(plan)) for plan in drive.plans if plan.decodes == 28]
    assert steps and min(lefts) == pytest.approx(TARGET - max(steps), rel=0.25)
    assert sum(left < TARGET for left in lefts) > 20


def test_a_recording_holds_the_model(toy):
    entry = recorded.entry(Connected(toy.facts(), MODEL), 1.5, ())
    assert recorded.event(
        msgspec.msgpack.decode(msgspec.msgpack.encode(entry), type=recorded.Entry)
    ) == Connected(toy.facts(), MODEL)


def test_which_model_is_taken(toy, tmp_path, caplog):
    def found(threads=None, **settings):
        flags = {"cache_dir": str(tmp_path), "threads": threads, **settings}
        return Measured(load(flags, environ={}).config).of(toy.facts())

    caplog.set_level("INFO")
    assert found() is None
    path = place(tmp_path, "toy", hardware())
    save(MODEL, path)
    assert found() == found(threads=2) == MODEL
    assert f"cost model {MODEL.hash}" in caplog.text
    # Measured with other threads, of another fingerprint, or not wanted.
    assert found(threads=1) is None
    assert "was measured with 2 threads and is left aside" in caplog.text
    assert found(cost_model="none") is None
    assert (
        Measured(load({"cache_dir": str(tmp_path)}, environ={}).config).of(toy.facts(fingerprint="x")) is None
    )
    # A named one is taken whatever it is of, and said.
    other = tmp_path / "other.json"
    save(msgspec.structs.replace(MODEL, provenance=Provenance(model="big", fingerprint="b")), other)
    assert found(cost_model=str(other)).provenance.model == "big"
    assert "another model, build or machine (big" in caplog.text
    path.write_text("{")
    assert found() is None
    assert "is no cost model" in caplog.text
    with pytest.raises(ConfigError, match=r"--cost-model: cannot read .*absent"):
        found(cost_model=str(tmp_path / "absent"))
