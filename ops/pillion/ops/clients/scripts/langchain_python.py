"""langchain-openai's chat model."""

import asyncio
import functools
import operator
import sys
import typing

import pydantic
from langchain_openai import ChatOpenAI, OpenAI

URL, MODEL = sys.argv[1:]
TO = {"base_url": f"{URL}/v1", "api_key": "none", "model": MODEL, "max_retries": 0, "seed": 1}
ASKED = "Count to five."


def check(name: str, holds: object) -> None:
    if not holds:
        sys.exit(f"{name} does not hold")
    print("ok", name)


chat = ChatOpenAI(**TO, max_tokens=16, stream_usage=True)
whole = chat.invoke(ASKED)
check("chat", whole.content and whole.usage_metadata["output_tokens"] <= 16)
chunks = list(chat.stream(ASKED))
check("stream", "".join(chunk.content for chunk in chunks) == whole.content)
check("usage of a stream", sum((chunk.usage_metadata or {}).get("output_tokens", 0) for chunk in chunks) > 0)
check("batch", [one.content for one in chat.batch([ASKED] * 3)] == [whole.content] * 3)
check("async", asyncio.run(chat.ainvoke(ASKED)).content == whole.content)
check(
    "logprobs",
    chat.bind(logprobs=True, top_logprobs=2).invoke(ASKED).response_metadata["logprobs"]["content"],
)


class Weather(pydantic.BaseModel, extra="forbid"):
    """The weather of a city."""

    city: typing.Literal["Rome", "Oslo"]


longer = ChatOpenAI(**TO, max_tokens=64)
for method in ("json_schema", "function_calling"):
    told = longer.with_structured_output(Weather, method=method).invoke(ASKED)
    check(f"structured by {method}", isinstance(told, Weather))
called = longer.bind_tools([Weather], tool_choice="required", parallel_tool_calls=False)
(call,) = called.invoke(ASKED).tool_calls
check("tools", Weather(**call["args"]) and call["name"] == "Weather")
gathered = functools.reduce(operator.add, called.stream(ASKED))
check("streamed tools", [one["args"] for one in gathered.tool_calls] == [call["args"]])
check("completion", OpenAI(**TO, max_tokens=8).invoke("Once upon a time"))
