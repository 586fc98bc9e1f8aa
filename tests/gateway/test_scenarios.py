"""The gateway's side of the scenarios, over real HTTP and a real Valkey. Numbers are the scenarios'."""

import asyncio
import json
from typing import Any

import openai
import pytest

from pillion.contracts.entries import Rate, Refusal, TokenLogprob, Tokens
from pillion.contracts.packed import pack
from tests.gateway.reader import durations

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 64}
STREAM = CHAT | {"stream": True}
PATH = "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}


def counts(stack: Any) -> dict[str, float]:
    """The counters that must reconcile, from a real scrape's registry."""
    registry = stack.gateway.state.metrics.registry
    result = {
        outcome: registry.get_sample_value("pillion_requests_total", {"outcome": outcome}) or 0
        for outcome in ("finished", "parked", "aborted", "failed")
    }
    return result | {
        "started": registry.get_sample_value("pillion_requests_started_total"),
        "running": registry.get_sample_value("pillion_requests_running"),
    }


async def test_s1_a_stream_that_is_left_is_parked(start: Any, until: Any, caplog: Any) -> None:
    caplog.set_level("INFO")
    stack = await start()
    async with stack.session.post(stack.url + PATH, json=STREAM) as response:
        request = await stack.driver.request()
        for position in range(3):
            await stack.driver.publish(request.gateway, Tokens(request.id, 0, position, (100 + position,)))
        for _ in range(3):
            assert (await response.content.readline()).startswith(b"id: ")
            assert (await response.content.readline()).startswith(b"data: {")
            await response.content.readline()
        response.close()
    cancel = await stack.driver.cancel()
    assert (cancel.request, cancel.choice, cancel.park) == (request.id, None, True)
    assert await stack.driver.connection.call("EXISTS", stack.driver.keys.tombstone(request.id)) == 0
    assert await stack.driver.connection.call("GET", stack.driver.keys.parking(request.id)) == b"0"
    await until(lambda: counts(stack)["parked"] == 1)
    assert not stack.gateway.state.calls
    assert durations(stack) == {"client_gone": 1} and counts(stack)["aborted"] == 0
    assert "the client is gone; it goes on where that comes back" in caplog.text


async def test_s1_a_whole_answer_that_is_not_waited_for_is_parked(start: Any, until: Any) -> None:
    stack = await start()
    answer = stack.post(PATH, CHAT)
    request = await stack.driver.request()
    await stack.driver.publish(request.gateway, Tokens(request.id, 0, 0, (100,)))
    await until(lambda: next(iter(stack.gateway.state.calls.values())).answer.output_tokens == 1)
    answer.cancel()
    assert (await stack.driver.cancel()).request == request.id
    await until(lambda: counts(stack)["parked"] == 1)


async def test_s2_s3_a_clients_id_is_one_live_requests(start: Any, until: Any) -> None:
    stack = await start()
    for named in (
        {"json": CHAT | {"request_id": "mine"}},
        {"json": CHAT, "headers": {"X-Request-Id": "mine"}},
    ):
        first = asyncio.create_task(stack.fetch("POST", PATH, **named))
        one = await stack.driver.request()
        status, body, headers = await stack.fetch("POST", PATH, **named)
        assert (status, body["error"]["code"]) == (409, "duplicate_request_id")
        first.cancel()
        await until(lambda: not stack.gateway.state.calls)
        second = asyncio.create_task(stack.fetch("POST", PATH, **named))
        two = await stack.driver.request()
        assert len({one.id, two.id, headers["x-request-id"]}) == 3 and "mine" not in (one.id, two.id)
        await stack.driver.play(two, [100])
        assert (await second)[0] == 200
    assert (await second)[2]["x-client-request-id"] == "mine"


async def test_s4_items_of_a_request_that_is_over_are_counted(start: Any, until: Any) -> None:
    stack = await start()
    answer = stack.post(PATH, CHAT)
    request = await stack.driver.request()
    await stack.driver.play(request, [100])
    await answer
    await stack.driver.publish(request.gateway, Tokens(request.id, 0, 1, (5,)))
    await until(lambda: stack.gateway.state.streams.late == 1)


async def test_s5_cancel_by_the_id_of_the_headers_before_any_token(start: Any, parse_sse: Any) -> None:
    stack = await start()
    async with stack.session.post(stack.url + PATH, json=STREAM) as response:
        # The headers are here while nothing has been computed.
        identity = response.headers["x-request-id"]
        assert (await stack.driver.request()).id == identity
        assert (await stack.fetch("DELETE", f"/v1/streams/{identity}"))[0] == 202
        *events, done = parse_sse(await response.text())
    assert [event["error"]["code"] for event in events] == ["cancelled"] and done == "[DONE]"
    assert (await stack.driver.cancel()).request == identity
    assert counts(stack)["aborted"] == 1
    assert (await stack.fetch("DELETE", "/v1/streams/nonsense"))[0] == 404
    assert (await stack.fetch("DELETE", "/v1/streams/" + "0" * 32))[0] == 404
    # One that lives at another gateway is cancelled over the bus.
    other = await start()
    answer = stack.post(PATH, STREAM)
    request = await stack.driver.request()
    assert (await other.fetch("DELETE", f"/v1/streams/chatcmpl-{request.id}"))[0] == 202
    assert (await stack.driver.cancel()).request == request.id
    answer.cancel()


async def test_s13_prompts_at_the_limit(start: Any) -> None:
    stack = await start()
    for length, asked, status in (
        (2047, {}, 200),
        (2048, {}, 400),
        (2049, {}, 400),
        (2047, {"max_tokens": 2}, 400),
        (2048, {"max_tokens": 0, "echo": True}, 200),
        (2049, {"max_tokens": 0, "echo": True}, 400),
    ):
        body = {"prompt": [100] * length, "max_tokens": 1} | asked
        answer = stack.post("/v1/completions", body)
        if status == 200:
            request = await stack.driver.request()
            assert request.max_tokens == body["max_tokens"]
            await stack.driver.play(request, [100])
        got, answered, _ = await answer
        assert got == status, answered
        if status == 200:
            assert answered["usage"]["completion_tokens"] == body["max_tokens"]
        if status == 400:
            error = answered["error"]
            assert error["code"] == "context_length_exceeded"
            # The limit may be the model's own or what the KV cache holds; the facts have one number.
            assert error["message"].startswith("This server takes at most 2048 tokens, prompt and output")
            assert str(length) in error["message"]
            assert error["param"] == ("max_tokens" if "max_tokens" in asked and length < 2048 else "prompt")


@pytest.mark.parametrize(
    ("options", "last", "others"),
    [(None, False, ()), ({}, False, ()), ({"include_usage": True}, True, (None,))],
)
async def test_s23_only_asked_for_usage_comes(
    start: Any, parse_sse: Any, options: Any, last: bool, others: Any
) -> None:
    stack = await start()
    answer = stack.post(PATH, STREAM | {"stream_options": options})
    await stack.driver.play(await stack.driver.request(), [100, 101])
    *events, done = parse_sse((await answer)[1])
    assert done == "[DONE]" and all("choices" in event for event in events)
    assert [event["choices"] == [] for event in events] == [False] * (len(events) - last) + [True] * last
    chunks = events[:-1] if last else events
    assert {event["usage"] for event in chunks if "usage" in event} == set(others)
    if last:
        assert events[-1]["usage"]["completion_tokens"] == 2


async def test_s24_an_error_in_a_stream_is_followed_by_done(start: Any, parse_sse: Any) -> None:
    stack = await start()
    for before in ((), (100,)):
        async with stack.session.post(stack.url + PATH, json=STREAM) as response:  # the headers are here
            request = await stack.driver.request()
            for position, token in enumerate(before):
                await stack.driver.publish(request.gateway, Tokens(request.id, 0, position, (token,)))
            await stack.driver.publish(
                request.gateway, Tokens(request.id, 0, len(before), (), "error", error="boom")
            )
            *events, frame, done = parse_sse(await response.text())
        assert (response.status, done) == (200, "[DONE]")
        assert frame["error"] == {
            "message": "boom", "type": "server_error", "param": None, "code": "generation_failed",
        }  # fmt: skip
        assert len(events) == 2 * len(before)
        assert all(event["choices"][0]["finish_reason"] is None for event in events)
    assert counts(stack)["failed"] == 2


async def test_s24_a_contradiction_that_shows_late_is_the_clients(start: Any, parse_sse: Any) -> None:
    stack = await start()
    for body in (STREAM, CHAT):
        answer = stack.post(PATH, body)
        request = await stack.driver.request()
        await stack.driver.publish(
            request.gateway,
            Tokens(request.id, 0, 0, (100,)),
            Tokens(request.id, 0, 1, (), "impossible", error="why"),
        )
        status, told, _ = await answer
        if body is STREAM:
            *_, told, done = parse_sse(told)
            assert done == "[DONE]"
        assert status == (200 if body is STREAM else 400)
        assert told["error"] == {
            "message": "why", "type": "invalid_request_error", "param": None, "code": "contradiction",
        }  # fmt: skip
    assert counts(stack)["failed"] == 2


async def test_s24_refused_after_the_headers(start: Any, parse_sse: Any) -> None:
    stack = await start()
    async with stack.session.post(stack.url + PATH, json=STREAM) as response:
        request = await stack.driver.request()
        refusal = Refusal(request.id, 504, "too late", code="late")
        await stack.driver.publish(request.gateway, refusals=(refusal,))
        frame, done = parse_sse(await response.text())
    assert (response.status, frame["error"]["code"], done) == (200, "late", "[DONE]")


@pytest.mark.parametrize("stream", [False, True])
async def test_refusals_map_to_http(start: Any, stream: bool) -> None:
    stack = await start()
    answer = stack.post(PATH, CHAT | {"stream": stream})
    request = await stack.driver.request()
    rates = (Rate("requests", 60, 3, 57.2), Rate("tokens", 1000, 0, 9.0))
    refusal = Refusal(
        request.id, 429, "full", "rate_limit_error", code="queue_full", retry_after=2.4, rates=rates
    )
    await stack.driver.publish(request.gateway, refusals=(refusal,))
    status, body, headers = await answer
    assert (status, headers["Retry-After"], headers["x-request-id"]) == (429, "3", request.id)
    told = {name: value for name, value in headers.items() if name.startswith("x-ratelimit-")}
    assert told == {
        "x-ratelimit-limit-requests": "60", "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-requests": "3", "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-requests": "58s", "x-ratelimit-reset-tokens": "9s",
    }  # fmt: skip
    assert body["error"] == {
        "message": "full",
        "type": "rate_limit_error",
        "param": None,
        "code": "queue_full",
    }
    assert not stack.gateway.state.calls


async def test_s26_a_stop_string_over_token_borders_ends_the_choice_at_the_scheduler(
    start: Any, parse_sse: Any
) -> None:
    stack = await start()
    tokens = stack.tokenizer.encode("one two three", add_special=False)
    assert len(tokens) == 3
    answer = stack.post(PATH, STREAM | {"n": 2, "stop": ["o thr", "three!"]})
    request = await stack.driver.request()
    for position, token in enumerate(tokens):
        for choice in (0, 1):
            shown = token if choice == 0 else 100 + position
            await stack.driver.publish(request.gateway, Tokens(request.id, choice, position, (shown,)))
    cancel = await stack.driver.cancel()
    assert (cancel.request, cancel.choice) == (request.id, 0)
    assert await stack.driver.connection.call("EXISTS", stack.driver.keys.tombstone(request.id)) == 0
    # The other choice goes on.
    await stack.driver.publish(request.gateway, Tokens(request.id, 0, 3, (), "cancelled"))
    await stack.driver.publish(request.gateway, Tokens(request.id, 1, 3, (103,), "length"))
    *events, done = parse_sse((await answer)[1])
    mine = [event["choices"][0] for event in events if event["choices"][0]["index"] == 0]
    assert "".join(part["delta"].get("content", "") for part in mine) == "one tw"
    assert (mine[-1]["finish_reason"], mine[-1]["stop_reason"]) == ("stop", "o thr")
    assert done == "[DONE]" and await stack.driver.no_cancel()


async def test_s27_one_entry_per_token_also_of_several_at_once(start: Any) -> None:
    stack = await start()
    answer = stack.post("/v1/completions", {"prompt": "Say", "max_tokens": 64, "logprobs": 2, "echo": True})
    request = await stack.driver.request()
    assert request.sampling.logprobs == 2
    tokens = stack.tokenizer.encode("🙂 is fine", add_special=False)
    (prompt,) = request.prompts
    assert request.sampling.prompt_logprobs == 2
    told = [TokenLogprob(-0.5, 2, ((5, -0.25), (token, -0.5))) for token in prompt[1:]]
    await stack.driver.play(
        request, tokens, size=3, logprobs=lambda token: TokenLogprob(-0.1, 1, ((token, -0.1), (5, -3.0))),
        prompt_logprobs=pack(told, 2),
    )  # fmt: skip
    choice = (await answer)[1]["choices"][0]
    assert choice["text"] == "Say🙂 is fine"
    logprobs = choice["logprobs"]
    count = len(prompt) + len(tokens)
    assert {len(values) for values in logprobs.values()} == {count} and len(tokens) > 3
    for name, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert name.startswith("bytes:") or choice["text"].startswith(name, offset)
    assert logprobs["text_offset"][0] == 0 and logprobs["text_offset"][len(prompt)] == 3
    assert logprobs["token_logprobs"][: len(prompt)] == [None] + [-0.5] * len(told)


async def test_s28_s49_choices_end_on_their_own_and_leaving_ends_all(
    start: Any, until: Any, parse_sse: Any
) -> None:
    stack = await start()
    answer = stack.post(PATH, STREAM | {"n": 4, "seed": 5})
    request = await stack.driver.request()
    assert (request.n, request.sampling.seed) == (4, 5), (
        "one request with one seed: the choice is in the draw"
    )
    for choice in (2, 0, 3, 1):
        await stack.driver.play(request, [100 + choice] * (choice + 1), choice)
    *events, done = parse_sse((await answer)[1])
    ends = [e["choices"][0]["index"] for e in events if e["choices"][0]["finish_reason"] == "length"]
    assert ends == [2, 0, 3, 1] and done == "[DONE]"
    assert await stack.driver.no_cancel()
    leaving = stack.post(PATH, CHAT | {"n": 4})
    request = await stack.driver.request()
    await stack.driver.play(request, [100], 0)
    await asyncio.sleep(0.1)
    leaving.cancel()
    cancel = await stack.driver.cancel()
    assert (cancel.request, cancel.choice) == (request.id, None)


async def test_s29_bad_input_never_falls(start: Any) -> None:
    stack = await start(max_body_bytes=100_000)
    for raw, param in (
        (b"{", None), (b"", None), (b"[]", None), (b"\xff", None), (b'{"messages": NaN}', "messages"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "messages[0].content"),
        (b'{"messages": [{"role": "user", "content": "x"}], "temperature": Infinity}', "temperature"),
        (b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}', "temperature"),
        (b'{"messages": [{"role": "user", "content": "x"}], "logit_bias": {"49152": 1}}', "logit_bias"),
        (b'{"messages": [{"role": "user", "content": "x"}], "stop_token_ids": [49152]}', "stop_token_ids"),
        (b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 2147483648}', "max_tokens"),
        (b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 2147483647}', "max_tokens"),
        (b'{"messages": [{"role": "user", "content": "x"}], "n": 129}', "n"),
    ):  # fmt: skip
        status, body, _ = await stack.fetch("POST", PATH, data=raw, headers=JSON)
        assert (status, body["error"]["param"]) == (400, param), raw
        assert body["error"]["type"] == "invalid_request_error"
    for prompt in ([49152], [[1], [49152]]):
        status, body, _ = await stack.fetch("POST", "/v1/completions", json={"prompt": prompt})
        assert (status, body["error"]["param"]) == (400, "prompt")
    status, body, _ = await stack.fetch("POST", PATH, data=b" " * 100_001, headers=JSON)
    assert (status, body["error"]["code"]) == (413, "request_too_large")
    status, body, _ = await stack.fetch("POST", PATH, data=b"x", headers=JSON | {"Content-Encoding": "gzip"})
    assert status == 400
    assert (await stack.fetch("GET", "/health/live"))[0] == 200
    assert counts(stack)["started"] == 0


async def test_s29_a_template_that_raises(start: Any, demo_model: Any) -> None:
    from pillion.gateway.model import Model
    from pillion.gateway.templates import ChatTemplate

    for source in (
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[5].content.x }}",
        "{{ 1 / 0 }}",
    ):
        template = ChatTemplate({"default": source}, demo_model.tokenizer.special, demo_model.tokenizer.guard)
        stack = await start(
            model=Model(
                "demo", demo_model.tokenizer, template, demo_model.defaults, located=demo_model.located
            )
        )
        status, body, _ = await stack.fetch("POST", PATH, json=CHAT)
        assert (status, body["error"]["code"], body["error"]["param"]) == (
            400,
            "chat_template_failed",
            "messages",
        )


async def test_s34_counters_reconcile(start: Any, until: Any) -> None:
    stack = await start()
    running = [stack.post(PATH, CHAT | {"n": 1 + number % 3}) for number in range(8)]
    requests = [await stack.driver.request() for _ in range(8)]
    await until(lambda: counts(stack)["running"] == 8)
    for request in requests[:3]:
        for choice in range(request.n):
            await stack.driver.play(request, [100], choice)
    for request in requests[3:5]:
        await stack.driver.publish(request.gateway, Tokens(request.id, 0, 0, (), "error", error="x"))
    await until(lambda: sum(task.done() for task in running) == 5)
    ids = {request.id for request in requests[5:7]}
    for identity in ids:
        await stack.fetch("DELETE", f"/v1/streams/{identity}")
    await until(lambda: counts(stack)["aborted"] == 2)
    ended = {"started": 8, "finished": 3, "failed": 2, "aborted": 2, "parked": 0, "running": 1}
    assert counts(stack) == ended
    for choice in range(requests[7].n):  # they come in any order
        await stack.driver.play(requests[7], [100], choice)
    await asyncio.gather(*running)
    assert counts(stack) == ended | {"finished": 4, "running": 0}
    status, text, _ = await stack.fetch("GET", "/metrics")
    assert (
        status == 200 and 'pillion_requests_total{outcome="finished"} 4.0' in text and "_created" not in text
    )


async def test_openais_client(start: Any) -> None:
    stack = await start(api_key=("secret",))
    client = openai.AsyncOpenAI(base_url=stack.url + "/v1/", api_key="secret", max_retries=0)
    tokens = stack.tokenizer.encode("Hi there", add_special=False)

    async def play() -> None:
        await stack.driver.play(
            await stack.driver.request(), tokens, logprobs=lambda t: TokenLogprob(-1.0, 1)
        )

    player = asyncio.create_task(play())
    stream = await client.chat.completions.create(
        model="demo",
        messages=CHAT["messages"],
        stream=True,
        stream_options={"include_usage": True},
        logprobs=True,
    )
    chunks = [chunk async for chunk in stream]
    await player
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hi there"
    assert (
        chunks[-1].usage.completion_tokens == 2 and chunks[-1].usage.prompt_tokens_details.cached_tokens == 0
    )
    assert chunks[1].choices[0].logprobs.content[0].token == "Hi"
    player = asyncio.create_task(play())
    answer = await client.completions.create(model="demo", prompt="x", max_tokens=2, logprobs=0)
    await player
    assert answer.choices[0].text == "Hi there" and answer.choices[0].logprobs.text_offset == [0, 2]
    assert [model.id for model in (await client.models.list()).data] == ["demo"]
    with pytest.raises(openai.BadRequestError) as bad:
        await client.completions.create(model="demo", prompt="", max_tokens=2)
    assert bad.value.param == "prompt"
    with pytest.raises(openai.NotFoundError):
        await client.completions.create(model="other", prompt="x")
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="wrong").models.list()
    await client.close()


async def test_no_text_reaches_the_log(start: Any, caplog: Any) -> None:
    caplog.set_level("DEBUG", logger="pillion")
    stack = await start()
    answer = stack.post(PATH, CHAT | {"messages": [{"role": "user", "content": "my-secret-prompt"}]})
    await stack.driver.play(await stack.driver.request(), [100])
    assert (await answer)[0] == 200
    lines = [record.getMessage() for record in caplog.records if "finished" in record.getMessage()]
    assert len(lines) == 1 and "1 output tokens" in lines[0] and "length" in lines[0]
    assert "my-secret-prompt" not in caplog.text and json.dumps(CHAT["messages"]) not in caplog.text
