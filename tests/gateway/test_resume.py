"""A stream goes on at another gateway, or at the same; two gateways, the test plays the rest of the stack."""

import asyncio
import json
from typing import Any

import openai
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pillion.contracts.entries import ChoiceRecord, Record, Refusal, Tokens
from pillion.gateway import reply, resume
from tests.gateway.reader import KEY, STREAM, begun, brought, contents, durations, left


async def test_a_client_that_is_gone_parks_and_goes_on_at_another_gateway(start: Any, reader: Any) -> None:
    one, two = await start(), await start()
    first = await reader(one).ask()
    request = await one.driver.request()
    await brought(one, request, 100, 101, 102)
    await first.read(3)  # role, 100, 101
    first.leave()
    cancel = await one.driver.cancel()
    assert (cancel.request, cancel.park, cancel.life) == (request.id, True, 0)
    await one.driver.park(request, ChoiceRecord((100, 101, 102, 103), ""))
    second = await reader(two).go_on(request.id, first.last)
    again = await one.driver.request()
    assert (again.id, again.life, again.gateway) == (request.id, 1, two.gateway.state.id)
    assert (again.prompts, again.sampling, again.arrival, again.deadline) == (
        request.prompts, request.sampling, request.arrival, request.deadline,
    )  # fmt: skip
    assert second.identity == request.id
    await brought(two, again, 104, at=4, finish="length")
    await second.rest()
    assert contents(first.events) == [100, 101]
    assert contents(second.events) == [102, 103, 104]
    ids = [id and id.partition("-")[0] for id, _ in first.events + second.events]
    assert ids == ["1", "2", "3", "4", "5", "6", "7", None]
    assert two.value("pillion_resumed_total", stood="parked") == 1
    assert two.value("gen_ai_server_time_to_first_token_seconds_count") == 0
    assert await one.driver.no_cancel()


async def test_a_stream_that_runs_moves_to_who_asks_last(
    start: Any, reader: Any, until: Any, caplog: Any
) -> None:
    caplog.set_level("INFO")
    one, two = await start(), await start()
    first, request = await begun(reader(one))
    pending = asyncio.create_task(reader(two).go_on(request.id, first.last))
    assert (await one.driver.cancel()).park, "it is parked there"
    await brought(one, request, 101, at=1)  # was under way
    await one.driver.park(request, ChoiceRecord((100, 101), ""))
    again = await one.driver.request()
    second = await pending
    await brought(two, again, 102, at=2, finish="length")
    await second.rest()
    await first.rest()
    *before, error, done = first.events
    assert contents(before) == [100, 101]
    assert json.loads(error[1])["error"]["code"] == "stream_moved" and done[1] == "[DONE]"
    assert contents(second.events) == [101, 102]
    await until(lambda: not one.gateway.state.calls and not two.gateway.state.calls)
    assert await one.driver.no_cancel(), "who lost the stream does not end it"
    assert two.value("pillion_resumed_total", stood="running") == 1
    assert one.value("pillion_requests_total", outcome="parked") == 1
    assert durations(one) == {"stream_moved": 1} and durations(two) == {"": 1}
    assert f"request {request.id} parked: " in caplog.text
    assert "it goes on in another connection" in caplog.text


async def test_within_one_gateway_too(start: Any, reader: Any, until: Any) -> None:
    stack = await start()
    first, request = await begun(reader(stack))
    pending = asyncio.create_task(reader(stack).go_on(request.id))
    assert (await stack.driver.cancel()).park
    await stack.driver.park(request, ChoiceRecord((100,), ""))
    again = await stack.driver.request()
    second = await pending
    await first.rest()
    assert json.loads(first.events[-2][1])["error"]["code"] == "stream_moved"
    assert list(stack.gateway.state.calls) == [request.id]
    await brought(stack, again, 101, at=1, finish="length")
    await second.rest()
    assert contents(second.events) == [100, 101]
    await until(lambda: not stack.gateway.state.calls)
    assert await stack.driver.no_cancel()


async def test_of_two_that_come_back_at_once_one_gets_the_stream(
    start: Any, reader: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(resume, "PATIENCE", 60.0)
    one, two = await start(), await start()
    first, request = await begun(reader(one))
    pending = [asyncio.create_task(reader(stack).go_on(request.id)) for stack in (one, two, two, one)]
    for _ in pending:
        assert (await one.driver.cancel()).park, "all wait for the same life to be parked"
    await one.driver.park(request, ChoiceRecord((100,), ""))
    again = await one.driver.request()
    assert again.life == 1
    winner = two if again.gateway == two.gateway.state.id else one
    await brought(winner, again, 101, at=1, finish="length")
    came = [await each for each in pending]
    won = [each for each in came if each.status == 200]
    assert len(won) == 1
    await won[0].rest()
    assert contents(won[0].events) == [100, 101]
    assert [await each.error() for each in came if each is not won[0]] == [(409, "stream_moved")] * 3
    assert not await one.driver.submitted.read(count=1, block=0.2), "one life was submitted"
    await first.rest()
    assert json.loads(first.events[-2][1])["error"]["code"] == "stream_moved"


async def test_who_still_waits_when_another_one_has_taken_the_stream_does_not_take_it_away(
    start: Any, reader: Any
) -> None:
    stack = await start()
    first = await reader(stack).ask()
    request = await stack.driver.request()
    pending = asyncio.create_task(reader(stack).go_on(request.id))
    assert (await stack.driver.cancel()).park
    await stack.driver.connection.call("HSET", stack.driver.keys.stream(request.id), "life", 1)
    assert await (await pending).error() == (409, "stream_moved")
    assert await stack.driver.no_cancel()
    first.leave()


async def test_coming_back_while_the_park_is_under_way_waits_for_it(start: Any, reader: Any) -> None:
    one, two = await start(), await start()
    first, request = await begun(reader(one))
    first.leave()
    pending = asyncio.create_task(reader(two).go_on(request.id, first.last))
    parks = [await one.driver.cancel(), await one.driver.cancel()]  # of who left, and of who comes
    assert {(each.park, each.life) for each in parks} == {(True, 0)}
    assert not await one.driver.submitted.read(count=1, block=0.2)
    await one.driver.park(request, ChoiceRecord((100, 101), ""))
    again = await one.driver.request()
    await brought(two, again, 102, at=2, finish="length")
    second = await pending
    await second.rest()
    assert contents(second.events) == [101, 102]


async def test_what_cannot_be_parked_is_left_to_who_has_it(start: Any, reader: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(resume, "PATIENCE", 0.3)
    one, two = await start(), await start()
    first = await reader(one).ask()
    request = await one.driver.request()
    await brought(one, request, 100)
    second = await reader(two).go_on(request.id)  # the scheduler is away
    assert await second.error() == (503, "stream_busy")
    await brought(one, request, 101, at=1, finish="length")
    await first.rest()
    assert contents(first.events) == [100, 101]


async def test_a_gateway_that_was_taken_for_dead_goes_on_by_itself(
    start: Any, reader: Any, monkeypatch: Any, caplog: Any
) -> None:
    monkeypatch.setattr(reply, "KEEPALIVE", 0.2)
    stack = await start()
    first = await reader(stack).ask()
    request = await stack.driver.request()
    await brought(stack, request, 100)
    await stack.driver.park(request, ChoiceRecord((100, 101), ""))
    again = await stack.driver.request()
    assert (again.life, again.gateway) == (1, request.gateway)
    await brought(stack, again, 102, at=2, finish="length")
    await first.rest()
    assert contents(first.events) == [100, 101, 102]
    assert "was parked under its connection" in caplog.text


async def test_a_lost_word_that_the_stream_moved_is_found_out(
    start: Any, reader: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(reply, "KEEPALIVE", 0.2)
    stack = await start()
    first = await reader(stack).ask()
    request = await stack.driver.request()
    await brought(stack, request, 100)
    await stack.driver.connection.call("HSET", stack.driver.keys.stream(request.id), "life", 1)
    await first.rest()
    assert json.loads(first.events[-2][1])["error"]["code"] == "stream_moved"
    assert await stack.driver.no_cancel()


async def test_nobody_else_finds_the_stream(start: Any, reader: Any) -> None:
    stack = await start(api_key=("a", "b"))
    mine, theirs = ({"Authorization": f"Bearer {key}"} for key in "ab")
    first = await reader(stack).ask(headers=mine)
    request = await stack.driver.request()
    path = f"/v1/streams/{request.id}"
    unknown = await stack.fetch("GET", "/v1/streams/" + "1" * 32, headers=mine)
    for method in ("GET", "DELETE"):
        status, body, _ = await stack.fetch(method, path, headers=theirs)
        assert (status, body) == (404, unknown[1])
        assert (await stack.fetch(method, path))[0] == 401
    async with stack.session.head(stack.url + path, headers=mine) as response:
        assert response.status == 405, "it would take the stream from who reads it"
    assert await stack.driver.no_cancel()
    await brought(stack, request, 100, finish="length")
    await first.rest()
    assert contents(first.events) == [100]
    # Kept as long as its record, and no longer.
    await stack.driver.connection.call("DEL", stack.driver.keys.stream(request.id))
    assert (await stack.fetch("GET", path, headers=mine))[0] == 404


async def test_an_event_id_of_no_such_stream_is_refused(start: Any, reader: Any) -> None:
    stack = await start()
    first = await reader(stack).ask(headers=KEY)
    request = await stack.driver.request()
    await brought(stack, request, 100)
    await first.read(2)
    numbers, _, seal = first.last.partition("-")
    false = ("1.2.3", numbers, f"{int(numbers) + 7}-{seal}", f"{int(numbers) - 1}-{seal}")
    for last in false:
        second = await reader(stack).go_on(request.id, last)
        assert await second.error() == (400, "invalid_event_id")
        second = await reader(stack).ask(headers=KEY | {"Last-Event-ID": last})
        assert await second.error() == (400, "invalid_event_id")
    assert await stack.driver.no_cancel(), "who reads the stream keeps it"
    await brought(stack, request, 101, at=1, finish="length")
    await first.rest()
    assert contents(first.events) == [100, 101]
    await stack.driver.record(Record(request.id, (ChoiceRecord((100, 101), "length"),)))
    for last in false:
        second = await reader(stack).go_on(request.id, last)
        assert await second.error() == (400, "invalid_event_id"), "nor of one that has ended"


async def test_a_draining_gateway_takes_nothing_from_another(start: Any, reader: Any) -> None:
    one, two = await start(), await start()
    first = await reader(one).ask()
    request = await one.driver.request()
    two.gateway.state.draining = True
    second = await reader(two).go_on(request.id)
    assert await second.error() == (503, "draining")
    assert await one.driver.no_cancel()
    await brought(one, request, 100, finish="length")
    await first.rest()
    await one.driver.record(Record(request.id, (ChoiceRecord((100,), "length"),)))
    third = await reader(two).go_on(request.id)
    await third.rest()
    assert third.events == first.events, "what has ended needs nobody"


async def test_after_redis_was_emptied_a_running_stream_can_still_be_resumed(start: Any, reader: Any) -> None:
    stack = await start()
    first, request = await begun(reader(stack))
    await asyncio.sleep(0.3)
    await stack.driver.connection.call("FLUSHALL")
    head = stack.driver.keys.stream(request.id)
    async with asyncio.timeout(10):
        while not await stack.driver.connection.call("EXISTS", head):
            await asyncio.sleep(0.02)
    assert (await stack.driver.request()).id == request.id  # submitted again
    assert 3600 < await stack.driver.connection.call("TTL", head) <= 4201
    await left(first, request, 100)
    second = await reader(stack).go_on(request.id, first.last)
    again = await stack.driver.request()
    await brought(stack, again, 101, at=1, finish="length")
    await second.rest()
    assert contents(second.events) == [101]


async def test_openais_client_is_deaf_to_ids_and_keepalives(start: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(reply, "KEEPALIVE", 0.1)
    stack = await start()
    client = openai.AsyncOpenAI(base_url=stack.url + "/v1/", api_key="none", max_retries=0)

    async def play() -> None:
        request = await stack.driver.request()
        for at, token in enumerate(stack.tokenizer.encode("Hi there", add_special=False)):
            await asyncio.sleep(0.35)
            finish = "length" if at else None
            await stack.driver.publish(request.gateway, Tokens(request.id, 0, at, (token,), finish))

    player = asyncio.create_task(play())
    stream = await client.chat.completions.create(
        model="demo", messages=STREAM["messages"], stream=True, extra_headers=KEY
    )
    chunks = [chunk async for chunk in stream]
    await player
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hi there"
    await client.close()


async def test_the_resumed_spans_are_linked_to_the_first(start: Any, reader: Any) -> None:
    stack = await start()
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    stack.gateway.state.accounts.tracer = provider.get_tracer("test")
    first, request = await begun(reader(stack))
    await left(first, request, 100)
    second = await reader(stack).go_on(request.id)
    again = await stack.driver.request()
    await brought(stack, again, 101, at=1, finish="length")
    await second.rest()
    one, two = (span for span in exporter.get_finished_spans() if span.name == "chat demo")
    (server,) = (span for span in exporter.get_finished_spans() if span.name == "GET /v1/streams/{id}")
    assert two.parent.span_id == server.context.span_id
    assert one.context.trace_id != two.context.trace_id
    assert [link.context.span_id for link in two.links] == [one.context.span_id]
    assert again.traceparent.split("-")[2] == f"{two.context.span_id:016x}"


async def test_what_was_accepted_waits_where_nothing_is_ready(start: Any, reader: Any, until: Any) -> None:
    stack = await start()
    first, request = await begun(reader(stack))
    await left(first, request, 100)
    await stack.driver.tell(state="unready", reason="the executor is away")
    await until(lambda: not stack.gateway.state.verdict().ready)
    second = await reader(stack).go_on(request.id, first.last)
    again = await stack.driver.request()
    await brought(stack, again, 101, at=1, finish="length")
    await second.rest()
    assert contents(second.events) == [101]


async def test_a_word_to_an_earlier_life_does_not_touch_this_one(start: Any, reader: Any) -> None:
    stack = await start()
    first, request = await begun(reader(stack))
    await left(first, request, 100)
    second = await reader(stack).go_on(request.id)
    again = await stack.driver.request()
    word = Refusal(request.id, 409, "gone on elsewhere", code="stream_moved", life=0)
    await stack.driver.publish(again.gateway, refusals=(word,))
    await brought(stack, again, 101, at=1, finish="length")
    await second.rest()
    assert contents(second.events) == [100, 101]
