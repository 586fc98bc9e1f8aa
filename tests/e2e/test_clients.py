"""What users point at a stack: OpenAI's client, curl, `pillion chat`."""

import json
import shlex
import subprocess
import sys
from typing import Any

import jsonschema_rs
import openai
import pytest

from pillion.ops.rig import Rig


@pytest.fixture(scope="module")
def client(stack: Rig) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0, timeout=60)


def model_of(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


def test_a_chat_streams_real_words(client: openai.OpenAI) -> None:
    events = list(
        client.chat.completions.create(
            model=model_of(client),
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            stream=True, stream_options={"include_usage": True}, temperature=0, max_tokens=24,
        )
    )  # fmt: skip
    pieces = [c.delta.content for e in events for c in e.choices if c.delta.content]
    assert len(pieces) > 3
    assert "Paris" in "".join(pieces)
    assert events[-1].usage is not None
    assert 0 < events[-1].usage.completion_tokens <= 24
    finishes = [c.finish_reason for e in events for c in e.choices if c.finish_reason]
    assert len(finishes) == 1


def test_streamed_and_whole_answers_agree(client: openai.OpenAI) -> None:
    asked = {"model": model_of(client), "prompt": "Once upon a time", "max_tokens": 20, "seed": 7}
    whole = client.completions.create(**asked)
    pieces = [e.choices[0].text for e in client.completions.create(**asked, stream=True)]
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 20
    assert len(pieces) > 10
    assert "".join(pieces) == whole.choices[0].text


CITY = {
    "type": "object", "required": ["name", "people"], "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "maxLength": 10},
        "people": {"type": "integer", "minimum": 0, "maximum": 99999999},
        "kind": {"enum": ["port", "capital"]},
    },
}  # fmt: skip


def test_structured_outputs_fit(client: openai.OpenAI) -> None:
    """Choices of one request, whole and streamed, beside each other and with a free one."""
    asked: dict[str, Any] = {
        "model": model_of(client), "messages": [{"role": "user", "content": "Name a city, in JSON."}],
        "n": 4, "seed": 3, "temperature": 1.0, "max_tokens": 60,
        "response_format": {
            "type": "json_schema", "json_schema": {"name": "c", "schema": CITY, "strict": True}
        },
    }  # fmt: skip
    whole = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
    texts = {choice.index: choice.message.content or "" for choice in whole.choices}
    ended = [texts[choice.index] for choice in whole.choices if choice.finish_reason == "stop"]
    assert len(ended) >= 2 and len(set(texts.values())) > 1
    for text in ended:
        jsonschema_rs.validate(CITY, json.loads(text))
    for choice in whole.choices:
        assert choice.logprobs is not None and choice.logprobs.content is not None
        entries = "".join(entry.token for entry in choice.logprobs.content)
        assert entries.removesuffix("<|im_end|>") == choice.message.content
    streamed = dict.fromkeys(range(4), "")
    for event in client.chat.completions.create(**asked, stream=True):
        for piece in event.choices:
            streamed[piece.index] += piece.delta.content or ""
    assert streamed == texts
    answer = client.completions.create(
        model=model_of(client), prompt="Is water wet?", max_tokens=4, echo=True,
        extra_body={"structured_outputs": {"choice": [" yes", " no"]}},
    )  # fmt: skip
    assert answer.choices[0].text in ("Is water wet? yes", "Is water wet? no")
    assert answer.choices[0].finish_reason == "stop"


def test_a_schema_that_cannot_be_kept_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        client.chat.completions.create(
            model=model_of(client), messages=[{"role": "user", "content": "x"}],
            extra_body={"guided_json": {"properties": {"a": {"not": {}}}}},
        )  # fmt: skip
    assert refusal.value.param == "guided_json" and "#/properties/a" in refusal.value.message


def test_the_raw_forms_and_the_helpers_of_the_client(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    asked = {"model": model_of(client), "messages": messages, "max_tokens": 8, "seed": 7}
    raw = client.chat.completions.with_raw_response.create(**asked)
    whole = raw.parse()
    text = whole.choices[0].message.content
    assert raw.headers["x-request-id"] == whole.id.removeprefix("chatcmpl-") and text
    with client.chat.completions.with_streaming_response.create(**asked, stream=True) as response:
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]" and lines[0].startswith("id: 1-")
    asked |= {"stop": [" ", ".", "\n"]}  # the helpers take no answer that was cut short
    with client.chat.completions.stream(**asked) as stream:
        kinds = {event.type for event in stream}
        word = stream.get_final_completion().choices[0].message.content
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert word != text and text.startswith(word)
    assert client.chat.completions.parse(**asked).choices[0].message.content == word


def test_the_curl_that_up_prints_streams_a_chat(stack: Rig) -> None:
    assert stack.url
    at = next(n for n, line in enumerate(stack.lines) if line.startswith("curl "))
    command = "\n".join(stack.lines[at : at + 2])
    done = subprocess.run(
        shlex.split(command.replace("\\\n", " ")), capture_output=True, text=True, timeout=60, check=False
    )
    events = [line.removeprefix("data: ") for line in done.stdout.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    texts = [c["delta"].get("content") or "" for e in events[:-1] for c in json.loads(e)["choices"]]
    assert len(texts) > 2
    assert "".join(texts).strip()


def chat(stack: Rig, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pillion.ops", "chat", "--state-dir", str(stack.state), *arguments],
        input=stdin, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_chat_finds_the_stack_and_tells_the_figures(stack: Rig) -> None:
    assert stack.url
    done = chat(stack, "What is the capital of France?", "--temperature", "0", "--max-tokens", "20")
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    for figure in (" prompt", "tokens, first after ", " tokens/s"):
        assert figure in done.stderr


def test_a_conversation_remembers_until_it_is_cleared(stack: Rig) -> None:
    def prompt_tokens(*said: str) -> list[int]:
        lines = chat(
            stack, "--max-tokens", "4", stdin="\n".join([*said, "/exit", "never asked"])
        ).stderr.splitlines()
        return [int(line.split(" prompt")[0]) for line in lines if " prompt" in line]

    assert stack.url
    first, second = prompt_tokens("Hello.", "Hello.")
    assert second > first
    first, second = (
        prompt_tokens("Hello.", "/clear", "Hello.")[:1] + prompt_tokens("Hello.", "/clear", "Hello.")[1:]
    )
    assert second == first


def test_chat_with_nobody_says_what_to_do(stack: Rig) -> None:
    done = chat(stack, "hi", "--url", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert done.stderr == (
        "pillion: no server at http://127.0.0.1:9: connection refused; start one with `pillion up`, or name "
        "another with --url\n"
    )


def test_a_wrong_request_is_told_in_the_servers_words(stack: Rig) -> None:
    assert stack.url
    done = chat(stack, "hi", "--model", "no-such-model")
    assert done.returncode == 1
    assert "no-such-model" in done.stderr
    assert "--url" not in done.stderr
