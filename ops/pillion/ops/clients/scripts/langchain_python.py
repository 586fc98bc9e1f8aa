"""langchain-openai's chat model."""

import asyncio
import sys

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
check("completion", OpenAI(**TO, max_tokens=8).invoke("Once upon a time"))
