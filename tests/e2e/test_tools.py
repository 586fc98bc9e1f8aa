"""Calls that are forced, of a real model that knows no tools: they always parse, and are as described."""

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jsonschema_rs
import openai
import pytest

from pillion.ops.rig import Rig

WEATHER = {
    "type": "object", "required": ["city", "days"], "additionalProperties": False,
    "properties": {
        "city": {"type": "string", "maxLength": 6}, "days": {"type": "integer", "minimum": 1, "maximum": 7},
        "unit": {"enum": ["C", "F"]},
    },
}  # fmt: skip
ADD = {
    "type": "object", "required": ["n"], "additionalProperties": False,
    "properties": {"n": {"type": "array", "items": {"enum": [1, 2, 3]}, "minItems": 1, "maxItems": 4}},
}  # fmt: skip
SCHEMAS = {"weather": WEATHER, "add": ADD}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()
]
NAMED = {"type": "function", "function": {"name": "add"}}
SEEDS = range(4)

Calls = list[list[str]]  # name and arguments of each


@pytest.fixture(scope="module")
def client(stack: Rig) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0, timeout=120)


def named(call: Any) -> list[str]:
    return [call.function.name, call.function.arguments]


def whole(client: openai.OpenAI, **asked: Any) -> list[tuple[Calls, str]]:
    """Of each choice its calls and how it ended."""
    answer = client.chat.completions.create(**asked)
    assert answer.usage is not None and answer.usage.completion_tokens > 0
    assert not any(choice.message.content for choice in answer.choices)
    return [
        ([named(call) for call in choice.message.tool_calls or ()], choice.finish_reason)
        for choice in answer.choices
    ]


def streamed(client: openai.OpenAI, **asked: Any) -> list[tuple[Calls, str]]:
    calls: list[Calls] = [[] for _ in range(asked["n"])]
    ends, pieces = [""] * asked["n"], 0
    for event in client.chat.completions.create(**asked, stream=True):
        (choice,) = event.choices
        assert not choice.delta.content
        for call in choice.delta.tool_calls or ():
            if call.id:
                assert (
                    call.index == len(calls[choice.index]) and call.type == "function" and call.function.name
                )
                calls[choice.index].append([call.function.name, ""])
            calls[choice.index][call.index][1] += call.function.arguments
            pieces += 1
        ends[choice.index] = choice.finish_reason or ends[choice.index]
    assert pieces > 3 * asked["n"], "arguments come as they are written"
    return list(zip(calls, ends, strict=True))


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_calls_that_are_forced_are_whole(client: openai.OpenAI, choice: Any) -> None:
    def ask(how: Any, seed: int) -> Any:
        return how(
            client, model=client.models.list().data[0].id, tools=TOOLS, tool_choice=choice, n=2, seed=seed,
            messages=[{"role": "user", "content": "Will it rain in Rome? And what is 1 + 2?"}],
            parallel_tool_calls=seed % 2 == 0, max_tokens=96, temperature=1.2,
        )  # fmt: skip

    with ThreadPoolExecutor(2 * len(SEEDS)) as pool:
        answers, streams = (list(pool.map(partial(ask, how), SEEDS)) for how in (whole, streamed))
    assert answers == streams, "the same seed draws the same calls"
    made: list[list[str]] = []
    for seed, answer in zip(SEEDS, answers, strict=True):
        for calls, end in answer:
            several = choice == "required" and seed % 2 == 0
            assert len(calls) == 1 or (several and calls)
            assert end == "tool_calls" or (several and len(calls) > 1)
            made += calls if end == "tool_calls" else calls[:-1]  # one that was cut off
    for name, arguments in made:
        assert choice == "required" or name == "add"
        assert jsonschema_rs.is_valid(SCHEMAS[name], json.loads(arguments)), arguments
    assert len(made) >= 2 * len(SEEDS)
    assert choice != "required" or len({arguments for _, arguments in made}) > 2, "they are the model's"
