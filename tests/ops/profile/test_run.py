"""A real executor process is measured over its gRPC stream."""

import asyncio

import pytest
from click.testing import CliRunner

from pillion.config import load
from pillion.contracts.access import Access
from pillion.ops.cli import main
from pillion.ops.profile import run
from pillion.ops.profile.drive import ProfileError
from pillion.ops.profile.run import measure
from pillion.scheduler.link import Link
from pillion.scheduler.messages import Connected
from pillion.steptime import Work

SMALL = {
    "dtype": "float32",
    "num_kv_blocks": 60,
    "max_num_seqs": 6,
    "max_num_batched_tokens": 64,
    "threads": 1,
}


async def test_an_executor_is_measured_until_a_scheduler_has_it(processes, tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "MIXES", 12)
    monkeypatch.setattr(run, "HELD", 6)
    address = f"unix:{tmp_path}/executor.sock"
    processes(model=tiny_model("smollm2"), executor=address, **SMALL).start("executor")
    config = load({"executor": address, **SMALL}, environ={}).config
    told = []
    found = await measure(config, 0.01, 3, lambda share, what: told.append((share, what)))
    assert told[0] == (0.0, "starting the executor") and told[-1] == (1.0, "fitting")
    # Each step was measured, those that are held out too, and none only once.
    assert found.rounds == 1 and sum(step.held for step in found.steps) == 6
    assert len(found.steps) > 18 and all(len(step.seconds) == 2 for step in found.steps)
    assert all(seconds > 0 for step in found.steps for seconds in step.seconds)
    works = [step.shape.work for step in found.steps]
    assert max(work.rows for work in works) == 64 and max(work.decodes for work in works) == 6
    model = found.model
    assert 0 < model.seconds(Work(1)) <= model.seconds(Work(64, pairs=2048.0, chunks=1))
    assert model.error.steps == 6 and model.ways.gap > 0 and model.ways.turn > 0
    assert (model.provenance.seed, model.provenance.backend, model.provenance.threads) == (3, "torch", 1)
    first, *steps = found.samples()
    assert first["cost_model"] == model.hash and len(steps) == len(found.steps)

    attached = asyncio.Event()
    link = Link(
        address,
        "0",
        lambda event: attached.set() if isinstance(event, Connected) else None,
        Access(config.executor),
    )
    scheduler = asyncio.create_task(link.run(1_000_000))
    try:
        async with asyncio.timeout(60):
            await attached.wait()
        with pytest.raises(ProfileError, match=r"epoch 1 is over.*leave --executor out"):
            await measure(config, 0.01, 3, lambda share, what: None)
        assert not link.why_not, "it was pushed aside"
    finally:
        scheduler.cancel()
        await asyncio.wait([scheduler])


def test_what_cannot_be_measured_is_one_line(tiny_model, tmp_path):
    def said(*arguments):
        result = CliRunner().invoke(main, ["profile", "--output", str(tmp_path / "x.json"), *arguments])
        assert result.exit_code == 1, result.output
        assert not (tmp_path / "x.json").exists()
        return result.output.strip().splitlines()[-1]

    assert "not/there" in said("--model", str(tmp_path / "not/there"))
    model = str(tiny_model("smollm2"))
    # Its own executor ends while it starts, and that is not waited for.
    assert said("--model", model, "--num-kv-blocks", "1").startswith(
        "pillion: the executor ended: 1 KV block is too few"
    )
