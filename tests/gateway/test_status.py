"""What /v1/status tells, and to whom."""

import asyncio
import time
from typing import Any

from pillion.contracts.entries import Queue, encode
from pillion.gateway import status
from pillion.gateway.recent import SPAN

ONE, TWO, ROOT = ({"Authorization": f"Bearer {key}"} for key in ("one", "two", "root"))
CHAT = {"messages": [{"role": "user", "content": "A secret"}], "max_tokens": 8}


async def test_a_tenant_sees_the_stack_and_its_own_requests_only(start: Any, until: Any) -> None:
    stack = await start(api_key=("one", "two"), admin_key="root")
    assert (await stack.fetch("GET", "/v1/status"))[0] == 401
    assert (await stack.fetch("GET", "/v1/status", headers=ROOT))[0] == 401
    assert (await stack.fetch("GET", "/admin/v1/status", headers=ONE))[0] == 401
    posted = [stack.post("/v1/chat/completions", CHAT, headers=key) for key in (ONE, TWO)]
    submitted = [await stack.driver.request() for _ in posted]
    mine, other = sorted(
        submitted, key=lambda each: each.tenant != stack.gateway.state.keys.tenant("Bearer one")
    )
    # Four tokens at once, then one with a gap.
    await stack.driver.play(mine, [5, 6, 7, 8], size=4, finish=None)
    await until(lambda: stack.gateway.state.calls[mine.id].answer.output_tokens == 4)
    await stack.driver.play(mine, [9], at=4, finish=None)
    await until(lambda: stack.gateway.state.calls[mine.id].answer.output_tokens == 5)

    _, told, _ = await stack.fetch("GET", "/v1/status", headers=ONE)
    assert told["running"] == 1 and told["gateway"]["running"] == 2
    (row,) = told["requests"]
    assert row["id"] == mine.id and "tenant" not in row and other.id not in str(told)
    assert (row["prompt_tokens"], row["output_tokens"], row["max_tokens"]) == (len(mine.prompts[0]), 5, 8)
    assert row["replica"] == "0" and len(row["gaps"]) == 1 and row["gaps"][0] == row["worst_gap"]
    assert row["ttft"] > 0 and 0 <= row["since"] <= row["age"]
    assert "secret" not in str(told)
    _, told, _ = await stack.fetch("GET", "/v1/status", headers=TWO)
    assert [each["id"] for each in told["requests"]] == [other.id]
    assert told["requests"][0]["ttft"] is None and told["requests"][0]["replica"] is None

    _, told, _ = await stack.fetch("GET", "/admin/v1/status", headers=ROOT)
    assert {each["id"]: each["tenant"] for each in told["requests"]} == {
        each.id: each.tenant for each in submitted
    }
    for task in posted:
        task.cancel()


async def test_it_tells_steps_queue_and_tails(start: Any, until: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(status, "KEPT", 0.0)
    stack = await start(slo_ttft=2.0)
    _, told, _ = await stack.fetch("GET", "/v1/status")
    assert told["queue"] is None, "no admission has told"
    keys, connection = stack.driver.keys, stack.driver.connection
    await connection.call("SET", keys.queue, encode(Queue({"high": 1, "normal": 2, "low": 0}, 90)))
    known = stack.gateway.state.replicas
    await stack.driver.tell(epoch=2, steps=10, prefilled=900, decoded=70, step_time=1.0, step_budget=64)
    await until(lambda: known.last("0").steps == 10)
    await stack.driver.tell(
        steps=14, prefilled=1000, decoded=82, step_time=1.5, step_budget=96, free_blocks=384, kv_usage=0.125,
        step_limit=512, step_target=0.1, seats=20, running=3, preemptions=2,
    )  # fmt: skip
    await until(lambda: known.last("0").steps == 14)

    async def carried() -> dict[str, Any]:
        """Once the second is over."""
        deadline = time.monotonic() + 20
        while True:
            _, told, _ = await stack.fetch("GET", "/v1/status")
            if sum(told["stack"]["minute"]["prefill"]):
                return told
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)

    told = await carried()
    assert told["queue"] == {"waiting": {"high": 1, "normal": 2, "low": 0}, "tokens": 90}
    assert (told["ready"], told["stack"]["ready"], told["stack"]["running"]) == (True, 1, 3)
    (replica,) = told["replicas"]
    assert (sum(replica["minute"]["steps"]), sum(replica["minute"]["decode"])) == (4, 12)
    assert len(replica["minute"]["seconds"]) == SPAN and sum(replica["minute"]["seconds"]) == 0.5
    assert replica["blocks"] == {"used": 64, "cached": 64, "free": 384}
    assert (replica["budget"], replica["most"], replica["target"]) == (96, 512, 0.1)
    assert (replica["seats"], replica["preemptions"], replica["model"]) == (20, 2, "demo")
    assert told["latency"]["ttft"]["target"] == 2.0 and told["latency"]["tbt"]["count"] == 0

    posted = stack.post("/v1/chat/completions", CHAT)
    request = await stack.driver.request()
    await stack.driver.play(request, [5, 6, 7, 8], size=2)
    assert (await posted)[0] == 200
    _, told, _ = await stack.fetch("GET", "/v1/status")
    assert told["latency"]["ttft"]["count"] == 1 and told["latency"]["tbt"]["count"] == 3
    assert told["latency"]["tbt"]["worst"] > 0 and told["running"] == 0


async def test_many_replicas_are_summed_and_the_first_are_told(
    start: Any, until: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(status, "REPLICAS", 2)
    monkeypatch.setattr(status, "KEPT", 0.0)
    stack = await start()
    for name in ("a", "b", "z"):
        await stack.driver.tell(replica=name, running=1, state="unready" if name == "z" else "ready")
    await until(lambda: stack.gateway.state.replicas.last("z"))
    _, told, _ = await stack.fetch("GET", "/v1/status")
    assert (told["stack"]["replicas"], told["stack"]["ready"], told["stack"]["running"]) == (4, 3, 3)
    assert [each["replica"] for each in told["replicas"]] == ["z", "0"], "who is not ready comes first"


async def test_what_is_the_same_for_all_is_made_once_for_many(start: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(status, "KEPT", 60.0)
    stack = await start()
    first = (await stack.fetch("GET", "/v1/status"))[1]
    asked = stack.gateway.state.connections["read"].commands
    second = (await stack.fetch("GET", "/v1/status"))[1]
    assert stack.gateway.state.connections["read"].commands == asked
    assert first["latency"] == second["latency"] and second["at"] >= first["at"]
