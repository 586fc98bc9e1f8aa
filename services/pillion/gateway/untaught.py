"""Tools for chat templates that know none: definitions, calls and results become text. Pure."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Message = dict[str, Any]
Write = Callable[[str, str], str]
"""A call as text, from its name and its arguments in JSON."""

_RESULT = "<tool_response>\n{}\n</tool_response>"


def as_text(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], write: Write) -> list[Message]:
    """The messages without calls and results, and with a system message that describes the tools."""
    result: list[Message] = []
    for message in messages:
        match message["role"]:
            case "tool" | "function":
                text = _RESULT.format(message["content"])
                # Results of one turn are one message: many templates want turns to alternate.
                if result and result[-1].get("results"):
                    text = f"{result.pop()['content']}\n{text}"
                result.append({"role": "user", "content": text, "results": True})
            case _ if message.get("tool_calls"):
                calls = [_called(call["function"], write) for call in message["tool_calls"]]
                text = "\n".join([text for text in (message["content"],) if text] + calls)
                result.append({"role": message["role"], "content": text})
            case _:
                result.append(message)
    plain = [{key: value for key, value in message.items() if key != "results"} for message in result]
    return _described(plain, tools, write) if tools else plain


def _described(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], write: Write
) -> list[Message]:
    lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    example = write("NAME", '{"PARAMETER": "VALUE"}')
    text = (
        "These functions can be called, each described by a line of JSON:\n"
        f"{lines}\n\n"
        "Where one of them helps to answer, call it: write nothing but its name and its arguments, as in\n"
        f"{example}\n"
        "The next message then holds the result."
    )
    if messages and messages[0]["role"] in ("system", "developer"):
        first = messages[0]
        return [{**first, "content": f"{first['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _called(function: Mapping[str, Any], write: Write) -> str:
    return write(function["name"], json.dumps(function["arguments"], ensure_ascii=False))
