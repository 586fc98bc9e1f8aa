"""Who may ask for an explanation, where it comes from, and why there is none."""

import asyncio
from typing import Any

import pytest

from pillion.bus import Tail
from pillion.contracts.entries import ChoiceRecord, Control, Record, Refusal, decode, encode
from pillion.contracts.timeline import ChoiceSeen, Timeline

ASK = {"model": "demo", "prompt": [5, 6, 7], "max_tokens": 3}
ALICE, BOB = ({"Authorization": f"Bearer {name}"} for name in ("alice", "bob"))


def seen(request: str) -> bytes:
    choice = ChoiceSeen(0, 3, 0, 3, planned=1.0, first=2.0)
    return encode(Timeline(request, "0", 0.5, 0.6, 0.7, 0.1, (choice,)))


def path(identity: str, root: str = "/v1") -> str:
    return f"{root}/requests/{identity}/explain"


async def test_one_that_waits_one_that_runs_and_one_that_ended(start: Any) -> None:
    stack = await start()
    driver, keys = stack.driver, stack.driver.keys
    asking = stack.post("/v1/completions", ASK)
    request = await driver.request()
    status, told, _ = await stack.fetch("GET", path(f"cmpl-{request.id}"))
    assert (status, told["status"], told["replica"]) == (200, "waiting", None)
    assert "admission" in told["why"]

    await driver.connection.call("SET", keys.holder(request.id), "0")
    await driver.connection.call("SET", keys.explained(request.id), seen("stale"))
    running = asyncio.create_task(stack.fetch("GET", path(request.id)))
    controls = Tail(driver.blocking, keys.control("0"), last="0-0")
    (entry,) = await controls.read(count=1, block=10.0)
    word = decode(entry.payload, Control)
    assert (word.explain, word.epoch, word.flush, word.draining) == (request.id, 1, False, None)
    await driver.connection.call("SET", keys.explained(request.id), seen(request.id))
    status, told, _ = await running
    assert (status, told["status"], told["id"]) == (200, "running", request.id)

    await driver.play(request, [8, 9, 10])
    record = Record(request.id, (ChoiceRecord((8, 9, 10), "length"),), seen(request.id))
    await driver.connection.call("SET", keys.record(request.id), encode(record))
    assert (await asking)[0] == 200
    for _ in range(500):
        status, told, _ = await stack.fetch("GET", path(request.id))
        if told["ttft"]["parts"][-1]["what"] == "delivery":
            break
        await asyncio.sleep(0.01)
    assert (status, told["status"]) == (200, "finished")
    assert told["ttft"]["parts"][-1]["what"] == "delivery"


async def test_a_tenant_sees_its_own_and_an_administrator_all(start: Any) -> None:
    stack = await start(api_key=("alice", "bob"), admin_key="root")
    asking = stack.post("/v1/completions", ASK, headers=ALICE)
    request = await stack.driver.request()
    own = [(await stack.fetch("GET", path(request.id), headers=headers))[0] for headers in (ALICE, BOB)]
    assert own == [200, 404]
    root = {"Authorization": "Bearer root"}
    asked = [
        (await stack.fetch("GET", path(request.id, "/admin/v1"), headers=headers))[0]
        for headers in (root, ALICE)
    ]
    assert asked == [200, 401]
    assert (await stack.fetch("GET", path(request.id), headers=root))[0] == 401
    await stack.driver.play(request, [8, 9, 10])
    assert (await asking)[0] == 200


@pytest.mark.parametrize("kept", [b"", b"\x81"])
async def test_why_there_is_none(start: Any, kept: bytes) -> None:
    stack = await start()
    driver, keys = stack.driver, stack.driver.keys
    for identity in ("0" * 32, "nonsense"):
        assert (await stack.fetch("GET", path(identity)))[0] == 404
    asking = stack.post("/v1/completions", ASK)
    request = await driver.request()
    record = Record(request.id, (ChoiceRecord((8, 9, 10), "length"),), kept)
    await driver.connection.call("SET", keys.record(request.id), encode(record))
    status, told, _ = await stack.fetch("GET", path(request.id))
    assert (status, told["error"]["code"]) == (404, "not_found")
    assert ("cannot be read" if kept else "Nothing was kept") in told["error"]["message"]
    await driver.connection.call("DEL", keys.record(request.id))
    word = Refusal(request.id, 429, "too many")
    await driver.connection.call("HSET", keys.stream(request.id), "refused", encode(word))
    status, told, _ = await stack.fetch("GET", path(request.id))
    assert (status, "refused with 429, too many" in told["error"]["message"]) == (404, True)
    await driver.play(request, [8, 9, 10])
    await asking


async def test_a_replica_that_does_not_tell_is_not_waited_for_long(start: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("pillion.gateway.explain.PATIENCE", 0.2)
    stack = await start()
    asking = stack.post("/v1/completions", ASK)
    request = await stack.driver.request()
    await stack.driver.connection.call("SET", stack.driver.keys.holder(request.id), "0")
    status, told, _ = await stack.fetch("GET", path(request.id))
    assert (status, told["error"]["code"]) == (503, "no_answer")
    await stack.driver.play(request, [8, 9, 10])
    await asking
