"""Tools and reasoning over HTTP: what the model is told, and what its client gets, streamed and whole."""

import json
from typing import Any

import pytest

from pillion.contracts.entries import ChoiceRecord, Request
from pillion.gateway.guard import Guard
from pillion.gateway.model import Model
from pillion.gateway.templates import ChatTemplate
from tests.gateway.reader import PATH, STREAM, Reader

FUNCTION = {"name": "weather", "description": "of a city", "parameters": {"type": "object"}}
TOOLS = {"tools": [{"type": "function", "function": FUNCTION}]}
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "Rain?"}], "max_tokens": 200}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'


def encoded(stack: Any, text: str) -> list[int]:
    return list(stack.tokenizer.encode(text, add_special=False))


async def answered(stack: Any, body: dict[str, Any], *texts: str) -> tuple[Any, Request]:
    """The answer to a request whose choices bring these texts."""
    asked = stack.post(PATH, BODY | body)
    request = await stack.driver.request()
    for choice, text in enumerate(texts):
        await stack.driver.play(request, encoded(stack, text), choice, finish="stop")
    status, answer, _ = await asked
    assert status == 200, answer
    return answer, request


async def test_a_call_streamed_and_whole(start: Any, parse_sse: Any) -> None:
    stack = await start()
    whole, request = await answered(stack, TOOLS, f"Let me look.\n{CALL}")
    assert json.dumps(FUNCTION) in stack.tokenizer.decode(request.prompts[0], skip_special=False)
    (choice,) = whole["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "Let me look.")
    assert call["type"] == "function" and call["id"].startswith("call_")
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Köln"}'}
    text, _ = await answered(stack, TOOLS | {"stream": True}, f"Let me look.\n{CALL}")
    parts = [event["choices"][0] for event in parse_sse(text) if event != "[DONE]"]
    calls = [part["delta"]["tool_calls"][0] for part in parts if "tool_calls" in part["delta"]]
    identity = calls[0].pop("id")
    assert identity.startswith("call_") and identity != call["id"]
    assert calls[0] == {"index": 0, "type": "function", "function": {"name": "weather", "arguments": ""}}
    pieces = [call["function"].pop("arguments") for call in calls[1:]]
    assert "".join(pieces) == call["function"]["arguments"] and len(pieces) > 3 and all(pieces)
    assert all(one == {"index": 0, "function": {}} for one in calls[1:])
    assert "".join(part["delta"].get("content", "") for part in parts) == "Let me look."
    assert [part["finish_reason"] for part in parts if part["finish_reason"]] == ["tool_calls"]


async def test_what_is_no_call_and_who_may_not_call(start: Any) -> None:
    stack = await start()
    broken = CALL.replace("}}", "}")
    answer, request = await answered(stack, TOOLS, broken)
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": broken, "refusal": None}
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == len(encoded(stack, broken))
    for none in ({}, TOOLS | {"tool_choice": "none"}):
        answer, request = await answered(stack, none, CALL)
        assert answer["choices"][0]["message"] == {"role": "assistant", "content": CALL, "refusal": None}
        assert "weather" not in stack.tokenizer.decode(request.prompts[0], skip_special=False)


async def test_what_a_stream_has_told_of_a_call_is_no_end_with_calls_where_it_breaks_off(
    start: Any, parse_sse: Any
) -> None:
    stack = await start()
    for text, arguments, content, finish in (
        (CALL.replace('"}}', '",}}'), '{"city": "Köln",}', "", "stop"),
        (CALL.replace('"}}', '\n"}}'), '{"city": "Köln', '\n"}}\n</tool_call>', "stop"),
        (CALL.replace("}}", "}"), '{"city": "Köln"}', "", "tool_calls"),  # a brace too few behind them
    ):
        streamed, _ = await answered(stack, TOOLS | {"stream": True}, text)
        parts = [event["choices"][0] for event in parse_sse(streamed) if event != "[DONE]"]
        calls = [part["delta"]["tool_calls"][0] for part in parts if "tool_calls" in part["delta"]]
        assert "".join(call["function"]["arguments"] for call in calls) == arguments
        assert "".join(part["delta"].get("content", "") for part in parts) == content
        assert parts[-1]["finish_reason"] == finish
        whole, _ = await answered(stack, TOOLS, text)
        assert whole["choices"][0]["message"] == {"role": "assistant", "content": text, "refusal": None}
        assert whole["choices"][0]["finish_reason"] == "stop"


async def test_only_one_call_ends_the_choice(start: Any) -> None:
    stack = await start()
    body = BODY | TOOLS | {"parallel_tool_calls": False, "n": 2}
    asked = stack.post(PATH, body)
    request = await stack.driver.request()
    await stack.driver.play(request, encoded(stack, CALL * 2), 1, finish=None)
    cancel = await stack.driver.cancel()
    assert (cancel.request, cancel.choice) == (request.id, 1)
    await stack.driver.play(request, encoded(stack, f"{CALL}\n{CALL}"), 0, finish="length")
    _, answer, _ = await asked
    calls = [choice["message"]["tool_calls"] for choice in answer["choices"]]
    assert [len(each) for each in calls] == [1, 1] and calls[0][0]["id"] != calls[1][0]["id"]
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["tool_calls"] * 2
    several, _ = await answered(stack, TOOLS, f"{CALL}\n{CALL}")
    calls = several["choices"][0]["message"]["tool_calls"]
    assert len(calls) == 2 and calls[0]["id"] != calls[1]["id"]
    assert several["choices"][0]["message"]["content"] is None


async def test_a_call_that_is_forced_is_constrained_and_streams(start: Any, parse_sse: Any) -> None:
    stack = await start()
    text, request = await answered(stack, TOOLS | {"tool_choice": "required", "stream": True}, CALL)
    constraint = request.sampling.constraint
    assert constraint is not None and constraint.kind == "lark" and '\\"weather\\"' in constraint.text
    deltas = [event["choices"][0]["delta"] for event in parse_sse(text) if event != "[DONE]"]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert len(calls) > 4 and calls[0]["function"] == {"name": "weather", "arguments": ""}
    assert "".join(call["function"]["arguments"] for call in calls) == '{"city": "Köln"}'
    assert not any(delta.get("content") for delta in deltas)


async def test_a_schema_that_cannot_be_kept_is_told_with_its_place(start: Any) -> None:
    stack = await start()
    bad = {"name": "f", "strict": True, "parameters": {"properties": {"a": {"not": {}}}}}
    tools = [*TOOLS["tools"], {"type": "function", "function": bad}]
    body = BODY | {"tools": tools, "tool_choice": "required"}
    status, answer, _ = await stack.fetch("POST", PATH, json=body)
    assert (status, answer["error"]["param"]) == (400, "tools[1].function.parameters")
    assert "not" in answer["error"]["message"] and answer["error"]["code"] == "invalid_schema"
    for fine in (
        {"tool_choice": "auto"},
        {"tools": [*TOOLS["tools"], {**tools[1], "function": {**bad, "strict": False}}]},
    ):
        asked = stack.post(PATH, body | fine)
        await stack.driver.play(await stack.driver.request(), encoded(stack, CALL), finish="stop")
        assert (await asked)[0] == 200


async def test_a_call_goes_on_where_its_stream_broke(start: Any, reader: Any) -> None:
    """The gateway that goes on holds back what the first one held, and names the call the same."""
    stack = await start()
    tokens = encoded(stack, f"Hm. {CALL}")
    streams = []
    for cut in (len(tokens), len(tokens) // 2):
        client: Reader = await reader(stack).ask(STREAM | TOOLS)
        request = await stack.driver.request()
        await stack.driver.play(request, tokens[:cut], finish="stop" if cut == len(tokens) else None)
        await client.read(3)
        if cut < len(tokens):
            client.leave()
            cancel = await stack.driver.cancel()
            assert cancel.park
            await stack.driver.park(request, ChoiceRecord(tuple(tokens[:cut]), ""))
            again = await reader(stack).go_on(client.identity, client.last)
            request = await stack.driver.request()
            assert request.life == 1
            await stack.driver.play(request, tokens[cut:], at=cut, finish="stop")
            await again.rest()
            client.events += again.events
        else:
            await client.rest()
        deltas = [json.loads(data)["choices"][0]["delta"] for _, data in client.events if data != "[DONE]"]
        for delta in deltas:
            for call in delta.get("tool_calls", ()):
                assert call.pop("id", "call_").startswith("call_")
        streams.append(deltas)
    assert streams[0] == streams[1] and any("tool_calls" in delta for delta in streams[0])


async def test_tools_are_refused_where_nothing_reads_calls(start: Any, demo_model: Model) -> None:
    model = Model(
        "demo", demo_model.tokenizer, demo_model.template, demo_model.defaults, located=demo_model.located
    )
    stack = await start(model=model)
    status, answer, _ = await stack.fetch("POST", PATH, json=BODY | TOOLS)
    assert (status, answer["error"]["param"]) == (400, "tools")
    assert "--tool-call-parser" in answer["error"]["message"]


THINKS = (
    "{% for message in messages %}{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n{% if open %}<think>\n{% endif %}"
)


@pytest.fixture
def thinker(demo_model: Model) -> Model:
    template = ChatTemplate({"default": THINKS}, demo_model.tokenizer.special, Guard(()))
    return Model(
        "demo",
        demo_model.tokenizer,
        template,
        demo_model.defaults,
        "hermes",
        True,
        located=demo_model.located,
    )


@pytest.mark.parametrize("opened", [True, False])
async def test_reasoning_is_told_apart(start: Any, thinker: Model, parse_sse: Any, opened: bool) -> None:
    stack = await start(model=thinker)
    asked = {"chat_template_kwargs": {"open": opened}} | TOOLS
    text = f"{'' if opened else '<think>'}Rain, I guess.</think>\n\nWell.{CALL}"
    answer, _ = await answered(stack, asked, text)
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"] == message["reasoning"] == "Rain, I guess."
    assert message["content"] == "Well." and message["tool_calls"][0]["function"]["name"] == "weather"
    thought = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
    tokens = encoded(stack, text)
    begins, ends = (
        next(n for n in range(len(tokens)) if mark in stack.tokenizer.decode(tokens[:n]))
        for mark in ("" if opened else "<think>", "</think>")
    )
    assert thought == ends - begins + (not opened) > 5, "from the token that completes a mark to the other's"
    stream, _ = await answered(stack, asked | {"stream": True}, text)
    deltas = [event["choices"][0]["delta"] for event in parse_sse(stream) if event != "[DONE]"]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Rain, I guess."
    assert all(delta.get("reasoning") == delta.get("reasoning_content") for delta in deltas)
    order = [next(iter(delta), "end") for delta in deltas]
    assert order == sorted(order, key=["role", "reasoning_content", "content", "tool_calls", "end"].index)
    silent, _ = await answered(stack, asked | {"include_reasoning": False}, text)
    message = silent["choices"][0]["message"]
    assert "reasoning" not in message and "reasoning_content" not in message and message["content"] == "Well."
    assert silent["usage"]["completion_tokens_details"]["reasoning_tokens"] == thought
