"""What is told of prompts, as evaluation tools ask for it, through all services of a real stack."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest

from pillion.ops.rig import Rig
from tests.e2e.conftest import ADMIN_KEY

TEXT = "The capital of France is Paris. The capital of Italy is Rome. " * 8 + "Where is Madrid? In"


@pytest.fixture(scope="module")
def client(stack: Rig) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0, timeout=60)


def columns(choice: Any) -> dict[str, list[Any]]:
    assert choice.logprobs is not None
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return {name: getattr(choice.logprobs, name) for name in names}


@contextmanager
def steps(stack: Rig, tokens: int) -> Iterator[None]:
    """Meanwhile no step has more tokens, and each has as many as it may."""
    admin = {"Authorization": f"Bearer {ADMIN_KEY}"}
    budget, limits = f"{stack.url}/admin/v1/budgets/0", {"max_num_batched_tokens": tokens, "slo_tbt": 60}
    httpx.put(budget, headers=admin, json=limits).raise_for_status()
    try:
        yield
    finally:
        httpx.delete(budget, headers=admin).raise_for_status()


def chunks(stack: Rig, identity: str) -> list[int]:
    told = httpx.get(f"{stack.url}/v1/requests/{identity}/explain").json()
    return [step["own_tokens"] for step in told["prefill"]["chunks"]]


def test_an_echoed_prompt_in_chunks_and_in_one_step(stack: Rig, client: openai.OpenAI) -> None:
    """The same to the last bit, and as the answer was told of where that is sent as a prompt."""
    asked: dict[str, Any] = {
        "model": "demo", "prompt": TEXT, "echo": True, "logprobs": 1, "temperature": 0,
        "extra_body": {"return_token_ids": True, "ignore_eos": True},
    }  # fmt: skip
    with steps(stack, 512):
        only = client.completions.create(**asked, max_tokens=0)
    assert only.usage is not None and only.usage.completion_tokens == 0
    (choice,) = only.choices
    whole = columns(choice)
    assert (choice.text, choice.finish_reason) == (TEXT, "length")
    assert whole["token_logprobs"][0] is None and whole["top_logprobs"][0] is None
    assert len(whole["tokens"]) == only.usage.prompt_tokens == len(whole["token_logprobs"]) > 100
    assert "".join(whole["tokens"]) == TEXT
    assert all(TEXT.startswith(*each) for each in zip(whole["tokens"], whole["text_offset"], strict=True))
    assert max(whole["token_logprobs"][1:]) <= 0 and sum(whole["token_logprobs"][-60:-20]) > -20, (
        "what was said seven times is likely"
    )

    with steps(stack, 16):
        cut: Any = client.completions.create(**asked, max_tokens=5)
        streamed = list(client.completions.create(**asked, max_tokens=5, stream=True))
    assert len(chunks(stack, only.id)) == 1 and len(chunks(stack, cut.id)) > 6
    found = columns(cut.choices[0])
    count = len(whole["tokens"])
    assert {name: values[:count] for name, values in found.items()} == whole
    assert len(found["tokens"]) == count + 5
    assert cut.choices[0].text == "".join(event.choices[0].text for event in streamed)
    parts = [columns(event.choices[0]) for event in streamed if event.choices[0].logprobs]
    assert {name: [value for part in parts for value in part[name]] for name in found} == found
    # Who asks for the answer's likelihood gets what the answer had.
    ids = cut.choices[0].prompt_token_ids + cut.choices[0].token_ids
    judged = client.completions.create(**asked | {"prompt": ids}, max_tokens=1)
    assert columns(judged.choices[0])["token_logprobs"][count : count + 5] == found["token_logprobs"][count:]


def test_as_other_servers_tell_it(client: openai.OpenAI, stack: Rig) -> None:
    chat: Any = client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "Hi"}], max_tokens=1,
        extra_body={"prompt_logprobs": 2, "return_token_ids": True},
    )  # fmt: skip
    told, ids = chat.prompt_logprobs, chat.prompt_token_ids
    assert told[0] is None and len(told) == len(ids) > 5
    for token, entry in zip(ids[1:], told[1:], strict=True):
        own = entry[str(token)]
        assert own["logprob"] <= 0 and own["rank"] >= 1 and 2 <= len(entry) <= 3
        assert (own["rank"] <= 2) == (len(entry) == 2), "it is among the likeliest"
    completion: Any = client.completions.create(
        model="demo", prompt=[ids, ids[:3]], max_tokens=1, extra_body={"prompt_logprobs": 2}
    )
    first, second = completion.choices
    assert (first.prompt_logprobs, second.prompt_logprobs) == (told, told[:3])
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(
            model="demo", prompt="x", max_tokens=1, stream=True, extra_body={"prompt_logprobs": 0}
        )
    assert refused.value.param == "prompt_logprobs"


def test_a_stream_is_resumed_with_what_was_told_of_the_prompt(stack: Rig) -> None:
    """From its very beginning, and behind the event that had it."""
    body = {"prompt": "Once upon a time", "echo": True, "logprobs": 1, "max_tokens": 6, "stream": True,
            "ignore_eos": True, "seed": 3}  # fmt: skip
    with httpx.Client(base_url=stack.url, timeout=60) as http:
        answer = http.post("/v1/completions", json=body)
        identity = answer.headers["x-request-id"]
        again = http.get(f"/v1/streams/{identity}")
        events = answer.text.split("\n\n")
        first = events[0].partition("\n")[0].removeprefix("id: ")
        rest = http.get(f"/v1/streams/{identity}", headers={"Last-Event-ID": first})
    assert again.text == answer.text and rest.text.split("\n\n") == events[1:]
    echoed = json.loads(events[0].partition("data: ")[2])["choices"][0]
    assert echoed["text"] == body["prompt"] and echoed["logprobs"]["token_logprobs"][0] is None
