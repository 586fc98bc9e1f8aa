"""Asked to end, a service finishes or hands on within its grace period; its code says how it went."""

import signal
import time
from typing import Any

from pillion.executor.servicer import IDLE_SECONDS
from tests.bus_client import client, request
from tests.chaos.poisoned import HANGING, HANGS
from tests.chaos.test_executor import POISONED, ended, poison, undisturbed


def settings(tiny_model: Any, **more: Any) -> dict[str, Any]:
    return {
        "model": tiny_model("llama3"), "dtype": "float32", "block_size": 16, "num_kv_blocks": 512,
        "max_num_batched_tokens": 32, "lease_seconds": 1.0,
    } | more  # fmt: skip


async def test_an_executor_ends_soon_and_its_sequences_go_on(
    valkey: Any, processes: Any, tiny_model: Any
) -> None:
    """It waits for none of them: who comes next has to prefill them either way."""
    stack = processes(**settings(tiny_model))
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
    assert "handed on" not in stack.log("executor")
    log = stack.log("scheduler")
    assert log.count("executor lost: the executor is stopping") == 1, log + stack.log("executor")


async def test_a_replica_that_is_asked_to_end_lets_what_runs_end(
    valkey: Any, processes: Any, tiny_model: Any
) -> None:
    """Scheduler and executor in any order: each gets its signal when it gets it."""
    stack = processes(**settings(tiny_model))
    both = stack.start("executor"), stack.start("scheduler")
    wanted = [request(f"long-{index}", output=1800) for index in range(4)]
    async with client(valkey.url) as one:
        await one.ready()
        await one.send(*wanted)
        await one.until(lambda: all(len(one.tokens(each.id)) >= 5 for each in wanted))
        told = time.monotonic()
        for process in both:
            process.terminate()
        assert [await ended(process) for process in both] == [0, 0]
        took = time.monotonic() - told
        log = stack.log("scheduler")
        assert "executor lost" not in log and "left to others" not in log, log
        await one.until(lambda: all(one.finish(each.id) for each in wanted))
        assert [one.finish(each.id) for each in wanted] == ["length"] * 4
    assert took > 2 * IDLE_SECONDS, "there was nothing to wait for"


async def test_an_engine_that_hangs_when_it_is_asked_to_end_does_not_end_with_0(
    valkey: Any, processes: Any, tiny_model: Any
) -> None:
    stack = processes(**settings(tiny_model, drain_timeout=0.5))
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
