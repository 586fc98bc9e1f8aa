"""What takes long is done beside the event loop, where streams go on."""

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pillion.gateway.answers import Answer
from pillion.gateway.app import READ_ASIDE
from pillion.gateway.protocol import messages
from pillion.gateway.tokenizer import Tokenizer

Threads = Callable[[Any, str], set[threading.Thread]]


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    """`threads(place, name)`: those in which the function there is called from now on."""

    def watch(place: Any, name: str) -> set[threading.Thread]:
        seen: set[threading.Thread] = set()
        whole = getattr(place, name)

        def watched(*given: Any, **named: Any) -> Any:
            seen.add(threading.current_thread())
            return whole(*given, **named)

        monkeypatch.setattr(place, name, watched)
        return seen

    return watch


async def test_a_long_body_is_looked_through_there(start: Any, threads: Threads) -> None:
    stack = await start()
    seen = threads(messages, "_message")
    many = [{"role": "user", "content": "hi"}] * 3000
    assert len(json.dumps(many)) > READ_ASIDE
    status, told, _ = await stack.fetch("POST", "/v1/chat/completions", json={"messages": many})
    assert (status, told["error"]["code"]) == (400, "context_length_exceeded")
    assert seen and threading.main_thread() not in seen
    status, told, _ = await stack.fetch("POST", "/v1/chat/completions", json={"messages": [*many, {}]})
    assert (status, told["error"]["param"]) == (400, "messages[3000].role")


async def test_token_ids_are_told_there(start: Any, threads: Threads) -> None:
    stack = await start()
    seen = threads(Tokenizer, "token")
    _, told, _ = await stack.fetch("POST", "/tokenize", json={"prompt": "a b", "return_token_strs": True})
    assert told["token_strs"] == ["a", " b"]
    assert seen and threading.main_thread() not in seen


async def test_a_long_answer_is_made_there(start: Any, threads: Threads) -> None:
    stack = await start()
    seen = threads(Answer, "whole")
    for tokens, beside in ((10, False), (5000, True)):
        seen.clear()
        answer = stack.post("/v1/completions", {"prompt": "x", "max_tokens": 2000, "n": 3})
        request = await stack.driver.request()
        for choice in range(3):
            await stack.driver.play(request, [100] * (tokens // 3 + 1), choice, size=2000)
        assert (await answer)[0] == 200
        assert len(seen) == 1 and (threading.main_thread() not in seen) == beside


async def test_too_many_prompts_are_refused_before_one_is_read(start: Any) -> None:
    stack = await start(max_choices=3)
    prompts = ["x", "x" * (1 << 20), "x", "x"]
    status, told, _ = await stack.fetch("POST", "/v1/completions", json={"prompt": prompts})
    assert (status, told["error"]["param"], told["error"]["code"]) == (400, "prompt", "out_of_range")
