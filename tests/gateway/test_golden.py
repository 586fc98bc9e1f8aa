"""What each form of a stream sends, byte for byte: status, headers and body, as recorded in `golden/`.

Ids, checksums and times are normalised. To record one anew, delete the file, run the test, and read what
it wrote.
"""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from pillion.contracts.entries import TokenLogprob, Tokens
from pillion.gateway import reply

GOLDEN = Path(__file__).parent / "golden"
CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]})
COMPLETION = ("/v1/completions", {"prompt": "Say: "})
UNTOLD = ("date", "server")


def normalised(status: int, headers: Any, body: bytes) -> bytes:
    identity = headers["x-request-id"]
    told = sorted((name.lower(), value) for name, value in headers.items() if name.lower() not in UNTOLD)
    head = "".join(f"{name}: {value}\n" for name, value in told)
    text = f"{status}\n{head}\n".encode() + body
    text = text.replace(identity.encode(), b"REQUEST")
    text = re.sub(rb'"created":\d+', b'"created":0', text)
    text = re.sub(rb"call_[0-9a-f]{24}", b"CALL", text)
    return re.sub(rb"(?m)^(id: [0-9.x]+)-[0-9a-f]{8}$", rb"\1-CHECKSUM", text)


def logprob(token: int) -> TokenLogprob:
    return TokenLogprob(-0.5, 1, ((token, -0.5), (100, -1.25)))


async def words(stack: Any, request: Any, choice: int = 0, text: str = "Hi 🙂 there", **more: Any) -> None:
    tokens = stack.tokenizer.encode(text, add_special=False)
    await stack.driver.play(request, [*tokens, 2], choice, finish="stop", stop_token=2, **more)


async def calls(stack: Any, request: Any) -> None:
    text = 'See:\n<tool_call>{"name": "f", "arguments": {"a": "🙂"}}</tool_call>'
    await words(stack, request, text=text)


async def cut_short(stack: Any, request: Any) -> None:
    tokens = stack.tokenizer.encode("one two three four", add_special=False)
    await stack.driver.play(request, tokens, finish="length")


async def with_logprobs(stack: Any, request: Any) -> None:
    await words(stack, request, logprobs=logprob, size=3)


async def two(stack: Any, request: Any) -> None:
    first = stack.tokenizer.encode("one two", add_special=False)
    for position, token in enumerate(first):
        items = [Tokens(request.id, choice, position, (token + choice,)) for choice in (0, 1)]
        await stack.driver.publish(request.gateway, *items)
    at = len(first)
    for choice, finish in ((1, "length"), (0, "stop")):
        await stack.driver.publish(request.gateway, Tokens(request.id, choice, at, (), finish))


async def fails_at_once(stack: Any, request: Any) -> None:
    await stack.driver.publish(request.gateway, Tokens(request.id, 0, 0, (), "error", error="boom"))


async def fails_later(stack: Any, request: Any) -> None:
    await stack.driver.play(request, stack.tokenizer.encode("one two", add_special=False), finish=None)
    await stack.driver.publish(request.gateway, Tokens(request.id, 0, 2, (), "error", error="boom"))


TOOLS = {"tools": [{"type": "function", "function": {"name": "f"}}]}
USAGE = {"stream_options": {"include_usage": True}}
CONTINUOUS = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
FORMS: dict[str, tuple[tuple[str, dict[str, Any]], dict[str, Any], Any]] = {
    "chat": (CHAT, {}, words),
    "completion": (COMPLETION, {}, words),
    "completion-echo": (COMPLETION, {"echo": True}, cut_short),
    "chat-two-choices": (CHAT, {"n": 2}, two),
    "completion-two-choices": (COMPLETION, {"n": 2}, two),
    "chat-logprobs": (CHAT, {"logprobs": True, "top_logprobs": 2}, with_logprobs),
    "completion-logprobs": (COMPLETION, {"logprobs": 1}, with_logprobs),
    "chat-token-ids": (CHAT, {"return_token_ids": True}, words),
    "chat-usage": (CHAT, USAGE, words),
    "chat-continuous-usage": (CHAT, CONTINUOUS, words),
    "chat-stop-string": (CHAT, {"stop": ["o thr", "three!"]}, cut_short),
    "chat-tool-call": (CHAT, TOOLS, calls),
    "chat-error-before-the-first-token": (CHAT, {}, fails_at_once),
    "chat-error-after-the-first-token": (CHAT, {}, fails_later),
    "completion-error-after-the-first-token": (COMPLETION, {}, fails_later),
}


async def test_streams_are_what_was_recorded(start: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(reply, "ACCEPT", 0.02)
    stack = await start()
    for name, ((path, asked), more, play) in FORMS.items():
        body = asked | {"stream": True, "max_tokens": 64} | more
        async with stack.session.post(stack.url + path, json=body) as response:  # the headers are here
            await play(stack, await stack.driver.request())
            async with asyncio.timeout(60):
                got = normalised(response.status, response.headers, await response.read())
        file = GOLDEN / f"{name}.sse"
        if not file.exists():
            file.write_bytes(got)
            pytest.fail(f"{file.name} was recorded: read it, and run the test again")
        assert got == file.read_bytes(), name


def test_every_recording_is_held_to() -> None:
    assert {file.stem for file in GOLDEN.glob("*.sse")} == set(FORMS)


async def test_what_comes_at_once_is_sent_at_once(start: Any) -> None:
    """However many tokens, of however many choices: one write, which is one chunk on the wire."""
    stack = await start()
    body = CHAT[1] | {"stream": True, "n": 4, "max_tokens": 8}
    async with stack.session.post(stack.url + CHAT[0], json=body) as response:
        request = await stack.driver.request()
        step = [Tokens(request.id, choice, 0, (100, 101, 102)) for choice in range(4)]
        end = [Tokens(request.id, choice, 3, (), "length") for choice in range(4)]
        writes: list[bytes] = []
        async with asyncio.timeout(60):
            for items in (step, end):
                await stack.driver.publish(request.gateway, *items)
                written, whole = b"", False
                while not whole:
                    data, whole = await response.content.readchunk()
                    written += data
                writes.append(written)
    assert [write.count(b"\ndata: {") for write in writes] == [4 * 4, 4]  # role and three tokens; the end
    assert stack.value("pillion_time_between_tokens_seconds_count") == 4 * 2
