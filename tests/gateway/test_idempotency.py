"""The same request sent again under its Idempotency-Key is the same request."""

import asyncio
import json
from typing import Any

from pillion.contracts.entries import ChoiceRecord, Record, Refusal
from tests.gateway.reader import KEY, PATH, STREAM, begun, brought, contents, left


async def test_who_had_brought_nothing_yet_leaves_the_key_to_who_took_it(start: Any, reader: Any) -> None:
    stack = await start()
    first = await reader(stack).ask(headers=KEY)
    request = await stack.driver.request()
    pending = asyncio.create_task(reader(stack).go_on(request.id))
    assert (await stack.driver.cancel()).park
    await stack.driver.park(request, ChoiceRecord((), ""))
    again = await stack.driver.request()
    second = await pending
    await first.rest()
    assert json.loads(first.events[-2][1])["error"]["code"] == "stream_moved"
    await brought(stack, again, 100, finish="length")
    await second.rest()
    await stack.driver.record(Record(request.id, (ChoiceRecord((100,), "length"),)))
    third = await reader(stack).ask(headers=KEY)
    await third.rest()
    assert (third.identity, third.events) == (request.id, second.events)


async def test_a_whole_answer_can_be_fetched_again(start: Any, reader: Any) -> None:
    one, two = await start(), await start()
    body = STREAM | {"stream": False}
    left = one.post(PATH, body, headers=KEY)
    request = await one.driver.request()
    await brought(one, request, 100)
    left.cancel()
    assert (await one.driver.cancel()).park
    await one.driver.park(request, ChoiceRecord((100, 101), ""))
    answer = two.post(PATH, body, headers=KEY)
    again = await one.driver.request()
    assert (again.id, again.life) == (request.id, 1)
    await brought(two, again, 102, at=2, finish="length")
    status, whole, headers = await answer
    assert (status, headers["x-request-id"]) == (200, request.id)
    assert whole["choices"][0]["token_ids"] == [100, 101, 102]
    await one.driver.record(Record(request.id, (ChoiceRecord((100, 101, 102), "length"),)))
    for stack in (one, two):
        status, kept, headers = await stack.fetch("POST", PATH, json=body, headers=KEY)
        assert (status, kept, headers["x-request-id"]) == (200, whole, request.id)
        last = {"Last-Event-ID": "1"}  # says nothing about a whole answer
        status, kept, _ = await stack.fetch("GET", f"/v1/streams/{request.id}", headers=last)
        assert (status, kept) == (200, whole)
    assert not await one.driver.submitted.read(count=1, block=0.2)


async def test_the_same_post_again_is_the_same_stream(start: Any, reader: Any) -> None:
    one, two = await start(), await start()
    first, request = await begun(reader(one), headers=KEY)
    await left(first, request, 100)
    second = await reader(two).ask(headers=KEY | {"Last-Event-ID": first.last})
    again = await one.driver.request()
    assert again.id == second.identity == request.id
    await brought(two, again, 101, at=1, finish="length")
    await second.rest()
    assert contents(second.events) == [101]
    await one.driver.record(Record(request.id, (ChoiceRecord((100, 101), "length"),)))
    third = await reader(one).ask(headers=KEY)  # from the beginning
    await third.rest()
    assert third.events == first.events + second.events


async def test_a_key_is_one_requests_of_one_tenant(start: Any, reader: Any) -> None:
    stack = await start(api_key=("a", "b"))
    mine, theirs = ({"Authorization": f"Bearer {key}"} for key in "ab")
    first = await reader(stack).ask(headers=KEY | mine)
    request = await stack.driver.request()
    for other in (STREAM | {"max_tokens": 63}, STREAM | {"stream": False}):
        status, body, _ = await stack.fetch("POST", PATH, json=other, headers=KEY | mine)
        assert (status, body["error"]["code"], body["error"]["param"]) == (
            409, "idempotency_key_reused", "Idempotency-Key",
        )  # fmt: skip
    status, body, _ = await stack.fetch("POST", "/v1/completions", json=STREAM, headers=KEY | mine)
    assert (status, body["error"]["code"]) == (409, "idempotency_key_reused"), "there it is another request"
    second = await reader(stack).ask(headers=KEY | theirs)
    other = await stack.driver.request()
    assert other.id != request.id and second.identity == other.id
    for key in ("", "k" * 256, "ü"):
        status, body, _ = await stack.fetch(
            "POST", PATH, json=STREAM, headers=mine | {"Idempotency-Key": key}
        )
        assert (status, body["error"]["param"]) == (400, "Idempotency-Key")
    for each, its in ((first, request), (second, other)):
        await brought(stack, its, 100, finish="length")
        await each.rest()
        assert contents(each.events) == [100]


async def test_a_key_used_twice_at_once_runs_one(start: Any) -> None:
    stack = await start()
    answers = [stack.post(PATH, STREAM | {"stream": False}, headers=KEY) for _ in range(4)]
    request = await stack.driver.request()
    await brought(stack, request, 100, finish="length")
    await stack.driver.record(Record(request.id, (ChoiceRecord((100,), "length"),)))
    outcomes = [(await answer)[0] for answer in answers]
    assert set(outcomes) <= {200, 409} and 200 in outcomes
    assert not await stack.driver.submitted.read(count=1, block=0.2)
    assert (await stack.fetch("POST", PATH, json=STREAM | {"stream": False}, headers=KEY))[0] == 200


async def test_a_refused_request_frees_its_key(start: Any) -> None:
    stack = await start()
    for status in (429, 200):
        answer = stack.post(PATH, STREAM | {"stream": False}, headers=KEY)
        request = await stack.driver.request()
        if status == 429:
            assert await stack.driver.connection.call("KEYS", "*:once:*")
            await stack.driver.publish(request.gateway, refusals=(Refusal(request.id, 429, "full"),))
        else:
            await brought(stack, request, 100, finish="length")
        assert (await answer)[0] == status
        async with asyncio.timeout(10):  # the client is told first
            while status == 429 and await stack.driver.connection.call("KEYS", "*:once:*"):
                await asyncio.sleep(0.01)
    assert (await stack.fetch("GET", "/v1/streams/" + "0" * 32))[0] == 404


async def test_a_key_whose_request_is_no_longer_kept_starts_a_new_one(start: Any) -> None:
    stack = await start()
    seen = []
    for _ in range(2):
        answer = stack.post(PATH, STREAM | {"stream": False}, headers=KEY)
        request = await stack.driver.request()
        await brought(stack, request, 100, finish="length")
        assert (await answer)[0] == 200
        seen.append(request.id)
        await stack.driver.connection.call("DEL", stack.driver.keys.stream(request.id))  # its time is over
    assert len(set(seen)) == 2
