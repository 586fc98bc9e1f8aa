"""Asked to end, a service finishes or hands on within its grace period; its code says how it went."""

import signal
from typing import Any

import pytest

from tests.bus_client import client, request
from tests.chaos.poisoned import HANGING, HANGS
from tests.chaos.test_executor import POISONED, ended, poison, undisturbed


@pytest.fixture
def stack(processes: Any, tiny_model: Any) -> Any:
    return processes(
        model=tiny_model("llama3"), dtype="float32", block_size=16, num_kv_blocks=128,
        max_num_batched_tokens=32, lease_seconds=1.0, drain_timeout=0.5,
    )  # fmt: skip


async def test_an_executor_hands_on_what_outlives_its_grace_period(valkey: Any, stack: Any) -> None:
    executor = stack.start("executor")
    stack.start("scheduler")
    wanted = [request("long", output=1800), request("prompt", length=900, output=30)]
    async with client(valkey.url) as one:
        await one.ready()
        quiet = await undisturbed(one, wanted)
        await one.send(*wanted)
        await one.until(lambda: len(one.tokens("long")) >= 20)
        executor.terminate()
        assert await ended(executor) == 0
        await one.poll()
        assert not one.finish("long")
        stack.start("executor")
        await one.until(lambda: bool(one.finish("long") and one.finish("prompt")))
        assert {name: one.tokens(name) for name in quiet} == quiet
    assert "what had not ended within 0.5 s is handed on" in stack.log("executor")
    log = stack.log("scheduler")
    assert log.count("executor lost: the executor is stopping") == 1, log + stack.log("executor")


async def test_an_engine_that_hangs_when_it_is_asked_to_end_does_not_end_with_0(
    valkey: Any, stack: Any
) -> None:
    executor = stack.start("executor", program=POISONED)
    stack.start("scheduler")
    async with client(valkey.url) as one:
        await one.ready()
        await one.send(request("a", output=1800))
        await one.until(lambda: len(one.tokens("a")) >= 5)
        await one.send(poison(HANGS))
        await one.until(lambda: HANGING in stack.log("executor"))
        assert not one.finish("a")
        executor.send_signal(signal.SIGTERM)
        assert await ended(executor) == 70
    assert "the step that runs does not end; the engine died" in stack.log("executor")
