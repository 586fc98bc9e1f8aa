"""What has ended does not go on: who comes back gets what there was, and how it ended."""

import asyncio
import json
import time
from typing import Any

from pillion.contracts.entries import ChoiceRecord, Record, Refusal, Tokens, encode
from pillion.gateway import reply
from tests.gateway.reader import KEY, STREAM, begun, brought, contents, durations, left


async def test_a_stream_that_has_ended_is_replayed_from_any_event(
    start: Any, reader: Any, caplog: Any
) -> None:
    one, two = await start(), await start()
    body = STREAM | {"stream_options": {"include_usage": True}}
    first = await reader(one).ask(body, headers=KEY)
    request = await one.driver.request()
    await brought(one, request, 100, 101, 102, finish="stop")
    await first.rest()
    await one.driver.record(Record(request.id, (ChoiceRecord((100, 101, 102), "stop"),)))
    assert len(first.events) == 7  # role, three tokens, the end, usage, [DONE]
    caplog.set_level("INFO")
    for at in range(7):
        again = await reader(two).go_on("chatcmpl-" + request.id, first.events[at - 1][0] if at else None)
        await again.rest()
        assert again.events == first.events[at:]
    again = await reader(two).ask(body, headers=KEY)
    await again.rest()
    assert again.events == first.events
    assert two.value("pillion_resumed_total", stood="finished") == 8
    # It ended once, at the other gateway.
    assert two.value("pillion_requests_started_total") == two.value("pillion_requests_running") == 0
    assert two.value("pillion_requests_total", outcome="finished") == 0 and not durations(two)
    assert caplog.text.count(f"request {request.id} replayed, it had ended before: stop") == 8
    assert "TTFT" not in caplog.text
    ended = await two.fetch("DELETE", f"/v1/streams/{request.id}")
    assert ended[:2] == (200, {"id": request.id, "status": "finished"})
    assert await one.driver.no_cancel()


async def test_what_was_given_up_for_good_is_told_at_once_and_never_runs_again(
    start: Any, reader: Any
) -> None:
    one, two = await start(), await start()
    first, request = await begun(reader(one), headers=KEY)
    first.leave()
    assert (await one.driver.cancel()).park
    # As a dead letter ends: neither parked nor with a record of its end.
    word = Refusal(request.id, 500, "given up after 5 attempts", "server_error", code="poison_request")
    await one.driver.connection.call("HSET", one.driver.keys.stream(request.id), "refused", encode(word))
    for stack in (one, two):
        again = [await reader(stack).go_on(request.id, last) for last in (None, first.last)]
        for each in (*again, await reader(stack).ask(headers=KEY)):
            assert await each.error() == (500, "poison_request")
    assert await one.driver.no_cancel()
    assert not await one.driver.submitted.read(count=1, block=0.2)


async def test_a_lost_word_that_it_was_given_up_is_found_out(
    start: Any, reader: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(reply, "KEEPALIVE", 0.2)
    stack = await start()
    first, request = await begun(reader(stack))
    word = Refusal(request.id, 500, "given up after 5 attempts", "server_error", code="poison_request")
    await stack.driver.connection.call("HSET", stack.driver.keys.stream(request.id), "refused", encode(word))
    await first.rest()
    assert contents(first.events[:-2]) == [100]
    assert json.loads(first.events[-2][1])["error"]["code"] == "poison_request"
    assert await stack.driver.no_cancel()


async def test_an_error_that_a_stream_ended_with_is_its_end(start: Any, reader: Any) -> None:
    """One that killed its executor each time, with tokens or without."""
    one, two = await start(), await start()
    for tokens in ((), (100, 101)):
        first = await reader(one).ask()
        request = await one.driver.request()
        first.leave()
        await one.driver.cancel()
        ended = ChoiceRecord(tokens, "error", error="the step failed each time: the executor was lost")
        await one.driver.record(Record(request.id, (ended,)))
        again = await reader(two).go_on(request.id)
        if not tokens:
            assert await again.error() == (500, "generation_failed")
            continue
        await again.rest()
        *events, error, _ = again.events
        assert contents(events) == list(tokens)
        assert json.loads(error[1])["error"]["code"] == "generation_failed"
    assert await one.driver.no_cancel()


async def test_an_explicit_cancel_is_final(start: Any, reader: Any) -> None:
    one, two = await start(), await start()
    first = await reader(one).ask()
    request = await one.driver.request()
    await brought(one, request, 100, 101)
    await first.read(2)
    await left(first, request, 100, 101)
    assert (await two.fetch("DELETE", f"/v1/streams/{request.id}"))[0] == 202
    assert not (await one.driver.cancel()).park
    second = await reader(two).go_on(request.id, first.last)
    await second.rest()
    *events, error, done = second.events
    assert contents(events) == [101]
    assert json.loads(error[1])["error"]["code"] == "cancelled" and done[1] == "[DONE]"
    third = await reader(one).go_on(request.id, events[-1][0])
    assert await third.error() == (499, "cancelled")
    assert not await one.driver.submitted.read(count=1, block=0.2), "it does not run again"
    # The same where the scheduler had the cancel: its record has an end.
    await one.driver.record(Record(request.id, (ChoiceRecord((100, 101), "cancelled"),)))
    fourth = await reader(one).go_on(request.id)
    await fourth.rest()
    assert (await two.fetch("DELETE", f"/v1/streams/{request.id}"))[1]["status"] == "cancelled"
    assert contents(fourth.events[:-2]) == [100, 101]
    assert json.loads(fourth.events[-2][1])["error"]["code"] == "cancelled"


async def test_a_deadline_is_final(start: Any, reader: Any) -> None:
    stack = await start(request_timeout=2.0)
    first = await reader(stack).ask()
    request = await stack.driver.request()
    await brought(stack, request, 100, 101)
    await first.read(2)
    await left(first, request, 100, 101)
    assert request.deadline is not None
    await asyncio.sleep(max(0.0, request.deadline - time.time()) + 0.05)
    second = await reader(stack).go_on(request.id, first.last)
    await second.rest()
    assert contents(second.events[:-2]) == [101]
    assert json.loads(second.events[-2][1])["error"]["code"] == "request_timeout"
    assert not await stack.driver.submitted.read(count=1, block=0.2)


async def test_a_stop_string_is_final(start: Any, reader: Any) -> None:
    """One choice has ended by it before the park, which the scheduler came to know or not."""
    one, two = await start(), await start()
    body = STREAM | {"n": 2, "stop": ["two"]}
    tokens = one.tokenizer.encode("one two three", add_special=False)
    for told in ("cancelled", ""):
        first = await reader(one).ask(body)
        request = await one.driver.request()
        for position, token in enumerate(tokens):
            await one.driver.publish(request.gateway, Tokens(request.id, 0, position, (token,)))
        await one.driver.publish(request.gateway, Tokens(request.id, 1, 0, (100,)))
        assert (await one.driver.cancel()).choice == 0
        await first.read(5)  # role, one, the end; role, 100
        first.leave()
        assert (await one.driver.cancel()).park
        await one.driver.park(request, ChoiceRecord(tuple(tokens), told), ChoiceRecord((100,), ""))
        second = await reader(two).go_on(request.id)
        again = await one.driver.request()
        assert again.ended == (0,)
        assert await one.driver.no_cancel()
        await two.driver.publish(again.gateway, Tokens(request.id, 1, 1, (101,), "length"))
        await second.rest()
        mine = [json.loads(data)["choices"][0] for _, data in second.events[:-1]]
        text = "".join(part["delta"].get("content", "") for part in mine if part["index"] == 0)
        ends = {part["index"]: part["finish_reason"] for part in mine if part["finish_reason"]}
        assert (text, ends) == ("one ", {0: "stop", 1: "length"})


async def test_all_choices_ended_by_stop_strings_need_no_further_life(start: Any, reader: Any) -> None:
    stack = await start()
    first = await reader(stack).ask(STREAM | {"stop": ["two"]})
    request = await stack.driver.request()
    tokens = stack.tokenizer.encode("one two three", add_special=False)
    first.leave()
    await stack.driver.cancel()
    await stack.driver.park(request, ChoiceRecord(tuple(tokens), ""))
    second = await reader(stack).go_on(request.id)
    await second.rest()
    assert second.events[-1][1] == "[DONE]" and contents(second.events) == list(tokens[:2])
    assert not await stack.driver.submitted.read(count=1, block=0.2)


async def test_what_was_refused_in_a_later_life_can_come_back_again(start: Any, reader: Any) -> None:
    stack = await start()
    first, request = await begun(reader(stack))
    await left(first, request, 100)
    second = await reader(stack).go_on(request.id, first.last)
    again = await stack.driver.request()
    head = stack.driver.keys.stream(request.id)
    await stack.driver.connection.call("HSET", head, "parked", 1)  # as who refuses it does
    await stack.driver.publish(again.gateway, refusals=(Refusal(request.id, 429, "full", code="queue_full"),))
    await second.rest()
    third = await reader(stack).go_on(request.id, first.last)
    last = await stack.driver.request()
    assert last.life == 2
    await brought(stack, last, 101, at=1, finish="length")
    await third.rest()
    assert contents(third.events) == [101]
    assert await stack.driver.no_cancel()
