"""A stream goes on at another gateway, or at the same; two gateways, the test plays the rest of the stack."""

import asyncio
import json
from typing import Any

import openai
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pillion.contracts.entries import ChoiceRecord, Record, Refusal, Request, Tokens, encode
from pillion.gateway import reply, resume

PATH = "/v1/chat/completions"
STREAM: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 64,
    "stream": True,
    "return_token_ids": True,
}
KEY = {"Idempotency-Key": "once"}


def value(stack: Any, name: str, **labels: str) -> float:
    return stack.gateway.state.metrics.registry.get_sample_value(name, labels) or 0.0


def contents(events: list[tuple[str | None, str]]) -> list[int]:
    """The tokens of a stream's events."""
    bodies = [json.loads(data) for _, data in events if data != "[DONE]"]
    return [token for body in bodies for part in body["choices"] for token in part.get("token_ids", ())]


class Reader:
    """A client that reads a stream event by event and may go away."""

    def __init__(self, stack: Any, parse_ids: Any) -> None:
        self.stack = stack
        self.events: list[tuple[str | None, str]] = []
        self._parse = parse_ids
        self._response: Any = None

    async def ask(self, body: Any = STREAM, **more: Any) -> "Reader":
        self._response = await self.stack.session.post(self.stack.url + PATH, json=body, **more)
        return self

    async def go_on(self, identity: str, last: str | None = None, **headers: str) -> "Reader":
        headers |= {} if last is None else {"Last-Event-ID": last}
        url = f"{self.stack.url}/v1/streams/{identity}"
        self._response = await self.stack.session.get(url, headers=headers)
        return self

    @property
    def status(self) -> int:
        return int(self._response.status)

    @property
    def identity(self) -> str:
        return str(self._response.headers["x-request-id"])

    @property
    def last(self) -> str:
        """As a browser's EventSource has it."""
        return next(id for id, _ in reversed(self.events) if id is not None)

    async def read(self, count: int) -> None:
        for _ in range(count):
            block = await self._response.content.readuntil(b"\n\n")
            self.events += self._parse(block.decode())

    async def rest(self) -> None:
        self.events += self._parse(await self._response.text())

    async def error(self) -> tuple[int, str]:
        return self.status, (await self._response.json())["error"]["code"]

    def leave(self) -> None:
        self._response.close()


@pytest.fixture
def reader(parse_ids: Any) -> Any:
    return lambda stack: Reader(stack, parse_ids)


async def brought(stack: Any, request: Request, *tokens: int, at: int = 0, finish: str | None = None) -> None:
    last = len(tokens) - 1
    for index, token in enumerate(tokens):
        item = Tokens(request.id, 0, at + index, (token,), finish if index == last else None)
        await stack.driver.publish(request.gateway, item)


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
    assert [id for id, _ in first.events + second.events] == ["1", "2", "3", "4", "5", "6", "7", None]
    assert value(two, "pillion_resumed_total", stood="parked") == 1
    assert value(two, "gen_ai_server_time_to_first_token_seconds_count") == 0
    assert await one.driver.no_cancel()


async def test_a_stream_that_has_ended_is_replayed_from_any_event(start: Any, reader: Any) -> None:
    one, two = await start(), await start()
    first = await reader(one).ask(STREAM | {"stream_options": {"include_usage": True}})
    request = await one.driver.request()
    await brought(one, request, 100, 101, 102, finish="stop")
    await first.rest()
    await one.driver.record(Record(request.id, (ChoiceRecord((100, 101, 102), "stop"),)))
    assert len(first.events) == 7  # role, three tokens, the end, usage, [DONE]
    for at in range(7):
        again = await reader(two).go_on("chatcmpl-" + request.id, first.events[at - 1][0] if at else None)
        await again.rest()
        assert again.events == first.events[at:]
    assert value(two, "pillion_resumed_total", stood="finished") == 7
    assert value(two, "pillion_requests_running") == 0


async def test_a_stream_that_runs_moves_to_who_asks_last(start: Any, reader: Any, until: Any) -> None:
    one, two = await start(), await start()
    first = await reader(one).ask()
    request = await one.driver.request()
    await brought(one, request, 100)
    await first.read(2)
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
    assert value(two, "pillion_resumed_total", stood="running") == 1


async def test_within_one_gateway_too(start: Any, reader: Any, until: Any) -> None:
    stack = await start()
    first = await reader(stack).ask()
    request = await stack.driver.request()
    await brought(stack, request, 100)
    await first.read(2)
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


async def test_of_two_that_come_back_at_once_one_gets_the_stream(
    start: Any, reader: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(resume, "PATIENCE", 60.0)
    one, two = await start(), await start()
    first = await reader(one).ask()
    request = await one.driver.request()
    await brought(one, request, 100)
    await first.read(2)
    pending = [asyncio.create_task(reader(stack).go_on(request.id)) for stack in (one, two, two, one)]
    for _ in pending:
        assert (await one.driver.cancel()).park, "all wait for the same life to be parked"
    await one.driver.park(request, ChoiceRecord((100,), ""))
    again = await one.driver.request()
    assert again.life == 1
    others = [two if again.gateway == two.gateway.state.id else one]
    await brought(others[0], again, 101, at=1, finish="length")
    came = [await each for each in pending]
    won = [each for each in came if each.status == 200]
    assert len(won) == 1
    await won[0].rest()
    assert contents(won[0].events) == [100, 101]
    assert [await each.error() for each in came if each is not won[0]] == [(409, "stream_moved")] * 3
    assert not await one.driver.submitted.read(count=1, block=0.2), "one life was submitted"


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
    first = await reader(one).ask()
    request = await one.driver.request()
    await brought(one, request, 100)
    await first.read(2)
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
    first = await reader(one).ask(headers=KEY)
    request = await one.driver.request()
    await brought(one, request, 100)
    await first.read(2)
    first.leave()
    await one.driver.cancel()
    await one.driver.park(request, ChoiceRecord((100,), ""))
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
            await stack.driver.publish(request.gateway, refusals=(Refusal(request.id, 429, "full"),))
        else:
            await brought(stack, request, 100, finish="length")
        assert (await answer)[0] == status
    assert (await stack.fetch("GET", "/v1/streams/" + "0" * 32))[0] == 404


async def test_what_was_given_up_for_good_is_told_at_once_and_never_runs_again(
    start: Any, reader: Any
) -> None:
    one, two = await start(), await start()
    first = await reader(one).ask(headers=KEY)
    request = await one.driver.request()
    await brought(one, request, 100)
    await first.read(2)
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
    first = await reader(stack).ask()
    request = await stack.driver.request()
    await brought(stack, request, 100)
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
    first = await reader(stack).ask()
    request = await stack.driver.request()
    second = await reader(stack).go_on(request.id, "1.2.3")
    assert await second.error() == (400, "invalid_event_id")
    assert await stack.driver.no_cancel()
    first.leave()


async def test_an_explicit_cancel_is_final(start: Any, reader: Any) -> None:
    one, two = await start(), await start()
    first = await reader(one).ask()
    request = await one.driver.request()
    await brought(one, request, 100, 101)
    await first.read(2)
    first.leave()
    assert (await one.driver.cancel()).park
    await one.driver.park(request, ChoiceRecord((100, 101), ""))
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
    assert contents(fourth.events[:-2]) == [100, 101]
    assert json.loads(fourth.events[-2][1])["error"]["code"] == "cancelled"


async def test_a_deadline_is_final(start: Any, reader: Any) -> None:
    stack = await start(request_timeout=1.0)
    first = await reader(stack).ask()
    request = await stack.driver.request()
    await brought(stack, request, 100, 101)
    await first.read(2)
    first.leave()
    await stack.driver.cancel()
    await stack.driver.park(request, ChoiceRecord((100, 101), ""))
    assert request.deadline is not None
    await asyncio.sleep(1.1)
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
    first = await reader(stack).ask()
    request = await stack.driver.request()
    await brought(stack, request, 100)
    await first.read(2)
    first.leave()
    await stack.driver.cancel()
    await stack.driver.park(request, ChoiceRecord((100,), ""))
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
    first = await reader(stack).ask()
    request = await stack.driver.request()
    await brought(stack, request, 100)
    await first.read(2)
    await asyncio.sleep(0.3)
    await stack.driver.connection.call("FLUSHALL")
    head = stack.driver.keys.stream(request.id)
    async with asyncio.timeout(10):
        while not await stack.driver.connection.call("EXISTS", head):
            await asyncio.sleep(0.02)
    assert (await stack.driver.request()).id == request.id  # submitted again
    assert 3600 < await stack.driver.connection.call("TTL", head) <= 4201
    first.leave()
    assert (await stack.driver.cancel()).park
    await stack.driver.park(request, ChoiceRecord((100,), ""))
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
    first = await reader(stack).ask()
    request = await stack.driver.request()
    await brought(stack, request, 100)
    await first.read(2)
    first.leave()
    await stack.driver.cancel()
    await stack.driver.park(request, ChoiceRecord((100,), ""))
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
    first = await reader(stack).ask()
    request = await stack.driver.request()
    await brought(stack, request, 100)
    await first.read(2)
    first.leave()
    await stack.driver.cancel()
    await stack.driver.park(request, ChoiceRecord((100,), ""))
    await stack.driver.tell(state="unready", reason="the executor is away")
    await until(lambda: not stack.gateway.state.verdict().ready)
    second = await reader(stack).go_on(request.id, first.last)
    again = await stack.driver.request()
    await brought(stack, again, 101, at=1, finish="length")
    await second.rest()
    assert contents(second.events) == [101]


async def test_a_word_to_an_earlier_life_does_not_touch_this_one(start: Any, reader: Any) -> None:
    stack = await start()
    first = await reader(stack).ask()
    request = await stack.driver.request()
    await brought(stack, request, 100)
    await first.read(2)
    first.leave()
    await stack.driver.cancel()
    await stack.driver.park(request, ChoiceRecord((100,), ""))
    second = await reader(stack).go_on(request.id)
    again = await stack.driver.request()
    word = Refusal(request.id, 409, "gone on elsewhere", code="stream_moved", life=0)
    await stack.driver.publish(again.gateway, refusals=(word,))
    await brought(stack, again, 101, at=1, finish="length")
    await second.rest()
    assert contents(second.events) == [100, 101]
