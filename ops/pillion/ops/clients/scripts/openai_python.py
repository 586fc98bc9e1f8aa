"""OpenAI's client for Python: sync, async, raw, and its helpers."""

import asyncio
import sys
import typing

import openai
import pydantic

URL, MODEL = sys.argv[1:]
CHAT = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Count to five."}],
    "max_tokens": 16,
    "seed": 1,
}


def check(name: str, holds: object) -> None:
    if not holds:
        sys.exit(f"{name} does not hold")
    print("ok", name)


client = openai.OpenAI(base_url=f"{URL}/v1", max_retries=0, timeout=60)
check("models", [model.id for model in client.models.list()] == [MODEL])
whole = client.chat.completions.create(**CHAT)
text = whole.choices[0].message.content
check("chat", text and whole.usage.completion_tokens <= 16 and whole.usage.prompt_tokens_details is not None)
chunks = list(client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True}))
pieces = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
last = chunks[-1]
check("stream", "".join(pieces) == text and not last.choices)
check("usage of a stream", last.usage.completion_tokens == whole.usage.completion_tokens)

raw = client.chat.completions.with_raw_response.create(**CHAT)
check("raw response", raw.headers["x-request-id"] in raw.parse().id and raw.status_code == 200)
with client.chat.completions.with_streaming_response.create(**CHAT, stream=True) as response:
    lines = [line for line in response.iter_lines() if line]
check("raw stream", lines[-1] == "data: [DONE]" and lines[0].startswith("id: "))
word = CHAT | {"stop": [" ", "."]}  # the helpers take no answer that was cut short
with client.chat.completions.stream(**word) as stream:
    kinds = {event.type for event in stream}
    first = stream.get_final_completion().choices[0].message.content
check(
    "stream helper", first != text and text.startswith(first) and {"content.delta", "content.done"} <= kinds
)
check("parse helper", client.chat.completions.parse(**word).choices[0].message.content == first)


class Number(pydantic.BaseModel):
    """What is asked for below."""

    digits: typing.Literal["1", "2", "3"]


told = client.chat.completions.parse(**CHAT | {"max_tokens": 64}, response_format=Number)
check("parsed model", isinstance(told.choices[0].message.parsed, Number))


class Weather(pydantic.BaseModel):
    """What is called below."""

    city: typing.Literal["Rome", "Oslo"]


call = CHAT | {
    "max_tokens": 64,
    "tools": [openai.pydantic_function_tool(Weather, name="weather")],
    "tool_choice": "required",
    "parallel_tool_calls": False,
}
with client.chat.completions.stream(**call) as stream:
    deltas = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
    (streamed,) = stream.get_final_completion().choices[0].message.tool_calls
(called,) = client.chat.completions.parse(**call).choices[0].message.tool_calls
check("tools", isinstance(called.function.parsed_arguments, Weather) and called.function.name == "weather")
check(
    "streamed tools",
    streamed.function.parsed_arguments == called.function.parsed_arguments
    and "".join(event.arguments_delta for event in deltas) == called.function.arguments
    and len(deltas) > 1,
)

only = {"mode": "required", "tools": [{"type": "function", "function": {"name": "weather"}}]}
other = openai.pydantic_function_tool(Number, name="number")
some = client.chat.completions.create(
    **call
    | {"tools": [other, *call["tools"]], "tool_choice": {"type": "allowed_tools", "allowed_tools": only}}
)
check("allowed tools", [one.function.name for one in some.choices[0].message.tool_calls] == ["weather"])

several = CHAT | {"n": 3, "logprobs": True, "top_logprobs": 2}
texts, names = [""] * 3, [[], [], []]
for chunk in client.chat.completions.create(**several, stream=True):
    for choice in chunk.choices:
        texts[choice.index] += choice.delta.content or ""
        names[choice.index] += [one.token for one in (choice.logprobs.content if choice.logprobs else ())]
choices = client.chat.completions.create(**several).choices
check("streamed choices", texts == [choice.message.content for choice in choices])
check("streamed logprobs", names == [[one.token for one in choice.logprobs.content] for choice in choices])

two = client.completions.create(model=MODEL, prompt=["One", "Two"], n=2, max_tokens=4, logprobs=2)
check("completion", len(two.choices) == 4 and len(two.choices[3].logprobs.tokens) == 4)
extra = client.completions.create(
    model=MODEL, prompt="One", max_tokens=4, extra_body={"top_k": 1, "min_p": 0.1}
)
check("extra_body", extra.choices[0].finish_reason == "length")

for name, refused, kind, param in (
    (
        "refused value",
        lambda: client.chat.completions.create(**CHAT, top_p=5),
        openai.BadRequestError,
        "top_p",
    ),
    (
        "contradiction",
        lambda: client.completions.create(
            model=MODEL, prompt="x", extra_body={"guided_regex": "[0-9]", "bad_words": [*"0123456789"]}
        ),
        openai.BadRequestError,
        "guided_regex",
    ),
    (
        "unknown model",
        lambda: client.completions.create(model="x", prompt="x"),
        openai.NotFoundError,
        "model",
    ),
    ("no embeddings", lambda: client.embeddings.create(model=MODEL, input="x"), openai.NotFoundError, None),
):
    try:
        refused()
    except kind as error:
        check(name, error.param == param and error.request_id)
    else:
        check(name, False)


async def main() -> None:
    async with openai.AsyncOpenAI(base_url=f"{URL}/v1", max_retries=0, timeout=60) as other:
        stream = await other.chat.completions.create(**CHAT, stream=True)
        streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        several = await asyncio.gather(*(other.chat.completions.create(**CHAT) for _ in range(4)))
        check("async", streamed == text and {one.choices[0].message.content for one in several} == {text})
        left = await other.chat.completions.create(**CHAT | {"max_tokens": 400}, stream=True)
        await anext(aiter(left))
        await left.close()
        check("left in the middle", True)


asyncio.run(main())
