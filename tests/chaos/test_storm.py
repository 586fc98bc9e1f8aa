"""A short storm over a real stack: everything is killed or stopped in turn, and every stream is compared."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pillion.ops.chaos import report
from pillion.ops.chaos.run import Options, run
from pillion.ops.chaos.schedule import Blow, rolling
from pillion.ops.chaos.stack import Stack

KILLED = ("gateway", "admission", "valkey", "gateway")
STOPPED = ("executor", "scheduler")


def stack_of(tiny_model: Callable[..., Path], folder: Path, *more: str) -> Stack:
    """Small steps, so that a prompt takes many of them."""
    model = str(tiny_model("llama3"))
    settings = ("--model", model, "--threads", "1", "--max-num-batched-tokens", "32", "--lease-seconds", "1")
    return Stack(folder, (*settings, *more), folder / "log")


@pytest.mark.slow
async def test_a_storm_loses_and_doubles_nothing(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    # The first two have room about them, so that what their pauses consist of is measured.
    blows = [Blow(role, "kill", after=1.5) for role in ("scheduler", "executor")]
    blows += [Blow(role, "kill", after=1.5 if number == 0 else 0.3) for number, role in enumerate(KILLED)]
    blows += [Blow(role, "stop", after=0.2, seconds=1.5) for role in STOPPED]
    blows += [Blow("executor", "kill", after=0.1), Blow("scheduler", "kill", after=0.1, at_once=True)]
    stack = stack_of(tiny_model, tmp_path)
    try:
        record = await run(Options(streams=8, seed=5, output=300, blows=blows), stack, print)
    finally:
        code = await stack.end()
    raw = report.raw(record, stack.lines)
    said = report.words(raw)
    assert not record.faults and not record.differences, said
    assert code == 0
    total = raw["summary"]
    assert total["killed_and_died"] == total["killed"] == len(KILLED) + 4
    assert total["stopped"] == len(STOPPED)
    assert all(blow["died"] for blow in raw["blows"])
    killed = [blow for blow in raw["blows"] if blow["kind"] == "kill"]
    assert all(blow["new_pid"] not in (None, blow["pid"]) for blow in killed)
    assert total["hit_in_prefill"] > 0 and total["hit_in_decode"] > len(blows), said
    assert total["resumed"] > 0, said
    assert total["tokens_compared"] > 1000 and (total["lost_tokens"], total["doubled_tokens"]) == (0, 0)
    assert "model load" in raw["by_kind"]["kill executor"]["phases_mean"], said
    assert "lease wait" in raw["by_kind"]["kill scheduler"]["phases_mean"], said
    assert json.loads(json.dumps(raw)) == raw


@pytest.mark.slow
async def test_a_rolling_restart_under_load_loses_no_token(
    tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    """Each service ends with 0, though the streams outlive its grace period."""
    roles = ("gateway", "admission", "scheduler", "executor", "valkey")
    stack = stack_of(tiny_model, tmp_path, "--drain-timeout", "1")
    try:
        record = await run(Options(streams=4, seed=6, output=1200, blows=rolling(roles)), stack, print)
    finally:
        await stack.end()
    raw = report.raw(record, stack.lines)
    assert not record.faults and not record.differences, report.words(raw)
    assert [(blow["role"], blow["exit_code"]) for blow in raw["blows"]] == [(role, 0) for role in roles]
    total = raw["summary"]
    assert total["hit_in_decode"] > 0 and total["resumed"] > 0, report.words(raw)
    for role in ("gateway", "executor"):
        said = [line.text for line in stack.lines if line.role == role]
        assert any("what had not ended within 1 s is handed on" in text for text in said), role
