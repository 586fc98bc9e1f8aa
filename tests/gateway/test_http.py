"""The two forms over real HTTP and a real Valkey, streamed and whole."""

import asyncio
from typing import Any

from pillion.gateway.model import Model
from pillion.ops.chat import Chat

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}


async def test_a_chat_streams(start: Any, parse_sse: Any) -> None:
    stack = await start()
    answer = stack.post("/v1/chat/completions", CHAT | {"stream": True})
    request = await stack.driver.request()
    tokens = stack.tokenizer.encode("Hi there, you", add_special=False)
    await stack.driver.play(request, [*tokens, 2], finish="stop", stop_token=2)
    status, text, headers = await answer
    assert status == 200
    assert headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert headers["x-request-id"] == request.id
    *events, done = parse_sse(text)
    assert done == "[DONE]"
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events) == "Hi there, you"
    assert len(events) == len(tokens) + 2


async def test_a_chat_whole(start: Any) -> None:
    stack = await start()
    answer = stack.post("/v1/chat/completions", CHAT)
    request = await stack.driver.request()
    tokens = stack.tokenizer.encode("Hi there", add_special=False)
    await stack.driver.play(request, tokens, size=2)
    status, body, headers = await answer
    assert status == 200 and headers["x-request-id"] == request.id
    assert body["choices"][0]["message"]["content"] == "Hi there"
    assert body["choices"][0]["finish_reason"] == "length"
    prompt = sum(map(len, request.prompts))
    assert body["usage"] == {
        "prompt_tokens": prompt, "completion_tokens": len(tokens), "total_tokens": prompt + len(tokens),
        "prompt_tokens_details": {"cached_tokens": 0},
    }  # fmt: skip


async def test_pillion_chat_shows_reasoning_beside_the_answer(
    start: Any, demo_model: Model, capsys: Any
) -> None:
    model = Model(
        "demo", demo_model.tokenizer, demo_model.template, demo_model.defaults, None, True,
        located=demo_model.located,
    )  # fmt: skip
    stack = await start(model=model)
    chat = Chat(stack.url, None, None, {"max_tokens": 40})
    turn = asyncio.create_task(asyncio.to_thread(chat.run, "Hi"))
    text = "<think>\nShort is best.\n</think>\n\nHello."
    await stack.driver.play(await stack.driver.request(), stack.tokenizer.encode(text, add_special=False))
    assert await turn == 0
    shown = capsys.readouterr()
    assert shown.out == "Hello.\n"
    assert shown.err.startswith("Short is best.\n") and "first after" in shown.err
    assert chat.messages[-1] == {"role": "assistant", "content": "Hello."}
