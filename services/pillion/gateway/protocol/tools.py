"""The functions that a chat may call, and which of them it must."""

import re
from collections.abc import Iterable
from typing import Any

from pillion.gateway.protocol import values
from pillion.gateway.protocol.errors import bad
from pillion.gateway.protocol.request import Tools

MAX_TOOLS = 128
MAX_DESCRIPTION = 1 << 16
_NAME = re.compile(r"[a-zA-Z0-9_.\-]{1,64}")

_name_schema = {"type": "string", "pattern": f"^{_NAME.pattern}$"}
_description = values.text(MAX_DESCRIPTION, empty=True)
_MODES = ("none", "auto", "required")


@values.passes({
    "type": "array", "maxItems": MAX_TOOLS,
    "items": {
        "type": "object", "required": ["type", "function"],
        "properties": {
            "type": {"const": "function"},
            "function": {
                "type": "object", "required": ["name"],
                "properties": {
                    "name": _name_schema,
                    "description": {"type": ["string", "null"], "maxLength": MAX_DESCRIPTION},
                    "parameters": {"type": ["object", "null"]},
                    "strict": {"type": ["boolean", "null"]},
                },
            },
        },
    },
})  # fmt: skip
def definitions(name: str, value: Any) -> tuple[dict[str, Any], ...]:
    """The tools as the client wrote them."""
    tools = values.listed(values.unchecked({}), MAX_TOOLS)(name, value)
    result = [_definition(f"{name}[{index}]", tool) for index, tool in enumerate(tools)]
    names = [tool["function"]["name"] for tool in result]
    for index, one in enumerate(names):
        if one in names[:index]:
            raise bad(
                f"{name}[{index}].function.name", f"{name} holds two functions of one name.", "invalid_value"
            )
    return tuple(result)


def _definition(path: str, value: Any) -> dict[str, Any]:
    tool: dict[str, Any] = values.mapping(path, value)
    values.shallow(path, tool)
    if tool.get("type") != "function":
        raise bad(f"{path}.type", f"{path}.type must be function.", "invalid_value")
    path += ".function"
    function = values.mapping(path, tool.get("function"))
    if not (isinstance(named := function.get("name"), str) and _NAME.fullmatch(named)):
        raise bad(
            f"{path}.name",
            f"{path}.name must be 1 to 64 letters, digits, underscores, dots and hyphens.",
            "invalid_value",
        )
    for key, check in (
        ("description", _description),
        ("parameters", values.mapping),
        ("strict", values.boolean),
    ):
        if function.get(key) is not None:
            check(f"{path}.{key}", function[key])
    return tool


def described(listed: Iterable[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """What a template gets of the tools: all but `strict`, which is for the server."""
    return tuple(
        tool | {"function": {key: item for key, item in tool["function"].items() if key != "strict"}}
        for tool in listed
    )


@values.passes({
    "anyOf": [
        {"enum": list(_MODES)},
        {
            "type": "object", "required": ["type", "function"],
            "properties": {
                "type": {"const": "function"},
                "function": {"type": "object", "required": ["name"], "properties": {"name": _name_schema}},
            },
        },
    ]
})  # fmt: skip
def choice(name: str, value: Any) -> tuple[str, str | None]:
    """The mode, and the one function that must be called."""
    if isinstance(value, str):
        return values.one_of(_MODES)(name, value), None
    chosen = values.mapping(name, value)
    if chosen.get("type") != "function":
        raise bad(f"{name}.type", f"{name}.type must be function.", "invalid_value")
    function = values.mapping(f"{name}.function", chosen.get("function"))
    return "required", values.text(64)(f"{name}.function.name", function.get("name"))


def tools(asked: dict[str, Any]) -> Tools | None:
    """What the fields say together; None where nothing may be called. Raises ApiError."""
    listed = asked["tools"]
    mode, only = asked["tool_choice"] or ("auto", None)
    if not listed and mode == "required":
        raise bad("tool_choice", "tool_choice needs tools to choose from.", "invalid_value")
    if only is not None and only not in {tool["function"]["name"] for tool in listed}:
        raise bad("tool_choice", "tool_choice names a function that is not in tools.", "invalid_value")
    if not listed or mode == "none":
        return None
    return Tools(listed, required=mode == "required", only=only, parallel=asked["parallel_tool_calls"])
