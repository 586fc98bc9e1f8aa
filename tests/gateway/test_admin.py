"""The administrator's routes: behind a key of their own, over the whole stack, and followed by replicas."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pillion.bus import Connection, Tail, append
from pillion.config import leaves
from pillion.contracts.entries import Control, StepLimits, decode, encode
from pillion.gateway import admin, live
from tests.gateway.conftest import FACTS

KEY = {"Authorization": "Bearer root"}
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 64}
ROUTES = (
    ("GET", "/admin/v1/requests"),
    ("DELETE", "/admin/v1/requests/" + "0" * 32),
    ("GET", "/admin/v1/replicas"),
    ("GET", "/admin/v1/status"),
    ("PUT", "/admin/v1/drains/0"),
    ("DELETE", "/admin/v1/drains/0"),
    ("PUT", "/admin/v1/budgets/0"),
    ("DELETE", "/admin/v1/budgets/0"),
    ("DELETE", "/admin/v1/prefixes/0"),
)


@asynccontextmanager
async def obedient(stack: Any, epoch: int = 1) -> AsyncIterator[list[Control]]:
    """The replica follows what it is told and says so, as its scheduler does."""
    connection = Connection(stack.driver.connection.url, "replica")
    tail = Tail(connection, stack.driver.keys.control("0"), last="0-0")
    told: list[Control] = []

    async def follow() -> None:
        while True:
            for entry in await tail.read(block=1.0):
                word = decode(entry.payload, Control)
                told.append(word)
                if word.epoch == epoch:
                    limits = word.limits or StepLimits()
                    await stack.driver.tell(
                        epoch=epoch,
                        controlled=entry.id,
                        state="draining" if word.draining else "ready",
                        step_limit=limits.tokens or 512,
                        step_target=limits.target or 0.1,
                    )

    following = asyncio.create_task(follow())
    try:
        yield told
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await connection.close()


async def test_it_is_off_by_default(start: Any) -> None:
    stack = await start()
    for method, path in ROUTES:
        assert (await stack.fetch(method, path, headers=KEY))[0] == 404
    assert "admin" not in (await stack.fetch("GET", "/nothing"))[1]["error"]["message"]


async def test_its_key_is_its_own(start: Any) -> None:
    assert [leaf.secret for leaf in leaves() if leaf.name == "admin_key"] == [True]
    stack = await start(admin_key="root", api_key=("client",))
    for method, path in ROUTES:
        for key in ({}, {"Authorization": "Bearer client"}, {"Authorization": "Bearer "}):
            status, body, _ = await stack.fetch(method, path, headers=key, json={})
            assert (status, body["error"]["code"]) == (401, "invalid_api_key"), path
            assert "the administrator's key (--admin-key)" in body["error"]["message"]
    assert (await stack.fetch("GET", "//admin/v1//replicas/", headers=KEY))[0] == 200
    assert (await stack.fetch("GET", "/v1/models", headers=KEY))[0] == 401
    assert not await stack.driver.connection.call("EXISTS", stack.driver.keys.control("0"))


async def test_requests_of_the_whole_stack_are_listed_and_cancelled(start: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(live, "PAGE", 1)
    stack, other = await start(admin_key="root"), await start(admin_key="root")
    first = stack.post("/v1/chat/completions", CHAT | {"priority": 3, "n": 2})
    one = await stack.driver.request()
    second = other.post("/v1/completions", {"prompt": [1, 2, 3]})
    two = await stack.driver.request()
    # One goes on to the replica, as admission hands it over.
    keys, connection = stack.driver.keys, stack.driver.connection
    await append(connection, keys.run("0"), encode(one))
    await connection.call("XTRIM", keys.submit, "MAXLEN", 1)
    await append(connection, keys.run("0"), b"no entry")
    status, body, _ = await other.fetch("GET", "/admin/v1/requests", headers=KEY)
    assert status == 200 and body["has_more"] is False
    rows = {row["id"]: row for row in body["data"]}
    assert set(rows) == {one.id, two.id}
    assert (rows[one.id]["replica"], rows[two.id]["replica"]) == ("0", None)
    assert rows[one.id]["prompt_tokens"] == len(one.prompts[0]) and rows[one.id]["age_seconds"] >= 0
    assert (rows[one.id]["priority"], rows[one.id]["choices"], rows[one.id]["max_tokens"]) == (3, 2, 64)
    assert "Hello" not in str(body)
    status, body, _ = await other.fetch("GET", "/admin/v1/requests?limit=1", headers=KEY)
    assert len(body["data"]) == 1 and body["has_more"] is True
    for limit in ("0", "1001", "x", "-1", "²"):
        status, body, _ = await other.fetch("GET", "/admin/v1/requests", params={"limit": limit}, headers=KEY)
        assert (status, body["error"]["param"]) == (400, "limit")
    # Whosesoever it is, wherever it is.
    assert (await other.fetch("DELETE", f"/admin/v1/requests/chatcmpl-{one.id}", headers=KEY))[0] == 202
    assert (await other.fetch("DELETE", f"/admin/v1/requests/{two.id}", headers=KEY))[0] == 202
    assert {(await stack.driver.cancel()).request, (await stack.driver.cancel()).request} == {one.id, two.id}
    assert (await second)[0] == 499
    assert (await other.fetch("DELETE", "/admin/v1/requests/" + "0" * 32, headers=KEY))[0] == 404
    first.cancel()


async def test_a_replica_is_drained_and_takes_work_again(start: Any) -> None:
    stack = await start(admin_key="root")
    running = stack.post("/v1/chat/completions", CHAT)
    request = await stack.driver.request()
    async with obedient(stack) as told:
        status, body, _ = await stack.fetch("PUT", "/admin/v1/drains/0", headers=KEY)
        assert (status, body["replica"], body["state"]) == (200, "0", "draining")
        status, refused, headers = await stack.fetch("POST", "/v1/chat/completions", json=CHAT)
        assert (status, refused["error"]["code"]) == (503, "draining") and headers["Retry-After"]
        await stack.driver.play(request, [100])
        assert (await running)[0] == 200  # what runs goes on
        status, body, _ = await stack.fetch("DELETE", "/admin/v1/drains/0", headers=KEY)
        assert (status, body["state"]) == (200, "ready")
    assert told == [Control(1, draining=True), Control(1, draining=False)]
    again = stack.post("/v1/chat/completions", CHAT)
    await stack.driver.play(await stack.driver.request(), [100])
    assert (await again)[0] == 200


async def test_budgets_and_the_prefix_cache(start: Any) -> None:
    stack = await start(admin_key="root")
    async with obedient(stack) as told:
        for method, sent, limits in (
            ("PUT", {"max_num_batched_tokens": 64, "slo_tbt": 0.5}, StepLimits(64, 0.5)),
            ("PUT", {"max_num_batched_tokens": None, "slo_tbt": 1}, StepLimits(None, 1.0)),
            ("DELETE", None, StepLimits()),
        ):
            status, body, _ = await stack.fetch(method, "/admin/v1/budgets/0", headers=KEY, json=sent)
            assert status == 200 and told[-1] == Control(1, limits=limits)
            assert body["max_num_batched_tokens"] == (limits.tokens or 512)
            assert body["slo_tbt"] == (limits.target or 0.1)
        known = len(told)
        for sent, param in (
            ({"max_num_batched_tokens": FACTS.max_step_tokens + 1}, "max_num_batched_tokens"),
            ({"max_num_batched_tokens": 0}, "max_num_batched_tokens"),
            ({"slo_tbt": 0}, "slo_tbt"),
            ({"slo_tbt": 1e9}, "slo_tbt"),
            ({"slo": 1}, "slo"),
        ):
            status, body, _ = await stack.fetch("PUT", "/admin/v1/budgets/0", headers=KEY, json=sent)
            assert (status, body["error"]["param"]) == (400, param)
        assert len(told) == known
        assert (await stack.fetch("DELETE", "/admin/v1/prefixes/0", headers=KEY))[0] == 200
        assert told[-1] == Control(1, flush=True)
    _, body, _ = await stack.fetch("GET", "/admin/v1/replicas", headers=KEY)
    (row,) = body["data"]
    assert (row["replica"], row["model"], row["kv_usage"]) == ("0", "demo", 0.0)
    bound = await stack.driver.connection.call("TTL", stack.driver.keys.control("0"))
    assert 0 < bound <= 3600


async def test_who_does_not_confirm_is_told(start: Any, monkeypatch: Any) -> None:
    stack = await start(admin_key="root")
    assert (await stack.fetch("DELETE", "/admin/v1/prefixes/9", headers=KEY))[0] == 404
    monkeypatch.setattr(admin, "PATIENCE", 0.1)
    status, body, headers = await stack.fetch("DELETE", "/admin/v1/prefixes/0", headers=KEY)
    assert (status, body["error"]["code"]) == (503, "no_answer") and headers["Retry-After"]
    # Another one holds the replica by now: the word is not its own, and nobody waits for it.
    monkeypatch.setattr(admin, "PATIENCE", 60.0)
    asking = asyncio.create_task(stack.fetch("DELETE", "/admin/v1/prefixes/0", headers=KEY))
    async with asyncio.timeout(30):
        while await stack.driver.connection.call("XLEN", stack.driver.keys.control("0")) < 2:
            await asyncio.sleep(0.01)
        await stack.driver.tell(epoch=2)
        assert (await asking)[0] == 503
