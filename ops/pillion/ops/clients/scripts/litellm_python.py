"""litellm, as a proxy to any OpenAI-compatible server."""

import asyncio
import json
import sys

import litellm

URL, MODEL = sys.argv[1:]
TO = {"api_base": f"{URL}/v1", "api_key": "none", "max_tokens": 16, "seed": 1, "num_retries": 0}
CHAT = {"model": f"openai/{MODEL}", "messages": [{"role": "user", "content": "Count to five."}], **TO}


def check(name: str, holds: object) -> None:
    if not holds:
        sys.exit(f"{name} does not hold")
    print("ok", name)


whole = litellm.completion(**CHAT)
text = whole.choices[0].message.content
check("chat", text and whole.usage.completion_tokens <= 16)
pieces = [chunk.choices[0].delta.content or "" for chunk in litellm.completion(**CHAT, stream=True)]
check("stream", "".join(pieces) == text)
completed = litellm.text_completion(model=f"text-completion-openai/{MODEL}", prompt="Once", **TO)
check("completion", completed.choices[0].text)
check("async", asyncio.run(litellm.acompletion(**CHAT)).choices[0].message.content == text)
parameters = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
tools = [{"type": "function", "function": {"name": "weather", "parameters": parameters}}]
asked = CHAT | {"max_tokens": 64, "tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
(call,) = litellm.completion(**asked).choices[0].message.tool_calls
check("tools", json.loads(call.function.arguments)["city"] in ("Rome", "Oslo"))
schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": parameters, "strict": False}}
fits = litellm.completion(**CHAT | {"max_tokens": 64}, response_format=schema).choices[0].message.content
check("schema", json.loads(fits)["city"] in ("Rome", "Oslo"))
try:
    litellm.completion(**CHAT | {"top_p": 5})
except litellm.BadRequestError as error:
    check("refused value", "top_p" in str(error))
else:
    check("refused value", False)
