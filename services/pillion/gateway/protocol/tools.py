"""The functions that a chat may call, and which of them it must."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
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


_NAMED = {
    "type": "object", "required": ["type", "function"],
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "required": ["name"], "properties": {"name": _name_schema}},
    },
}  # fmt: skip
_ALLOWED = {
    "type": "object", "required": ["mode", "tools"],
    "properties": {
        "mode": {"enum": ["auto", "required"]},
        "tools": {"type": "array", "items": _NAMED, "minItems": 1, "maxItems": MAX_TOOLS},
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Choice:
    """`only`: the functions that may be called, () for all; `one`: there is one call."""

    mode: str = "auto"
    only: tuple[str, ...] = ()
    one: bool = False


@values.passes({
    "anyOf": [
        {"enum": list(_MODES)},
        _NAMED,
        {
            "type": "object", "required": ["type", "allowed_tools"],
            "properties": {"type": {"const": "allowed_tools"}, "allowed_tools": _ALLOWED},
        },
    ]
})  # fmt: skip
def choice(name: str, value: Any) -> Choice:
    if isinstance(value, str):
        return Choice(values.one_of(_MODES)(name, value))
    kind = values.mapping(name, value).get("type")
    if kind == "function":
        return Choice("required", (_named(name, value),), one=True)
    if kind != "allowed_tools":
        raise bad(f"{name}.type", f"{name}.type must be function or allowed_tools.", "invalid_value")
    path = f"{name}.allowed_tools"
    allowed = values.mapping(path, value.get("allowed_tools"))
    mode = values.one_of(("auto", "required"))(f"{path}.mode", allowed.get("mode"))
    listed = values.listed(values.unchecked({}), MAX_TOOLS)(f"{path}.tools", allowed.get("tools"))
    if not listed:
        raise bad(f"{path}.tools", f"{path}.tools must not be empty.", "empty_array")
    return Choice(mode, tuple(_named(f"{path}.tools[{index}]", one) for index, one in enumerate(listed)))


def _named(path: str, value: Any) -> str:
    """The function that is named there."""
    chosen = values.mapping(path, value)
    if chosen.get("type") != "function":
        raise bad(f"{path}.type", f"{path}.type must be function.", "invalid_value")
    function = values.mapping(f"{path}.function", chosen.get("function"))
    name: str = values.text(64)(f"{path}.function.name", function.get("name"))
    return name


def tools(asked: dict[str, Any]) -> Tools | None:
    """What the fields say together; None where nothing may be called. Raises ApiError."""
    listed = asked["tools"]
    chosen: Choice = asked["tool_choice"] or Choice()
    if not listed and chosen.mode == "required":
        raise bad("tool_choice", "tool_choice needs tools to choose from.", "invalid_value")
    if set(chosen.only) - {tool["function"]["name"] for tool in listed}:
        raise bad("tool_choice", "tool_choice names a function that is not in tools.", "invalid_value")
    if not listed or chosen.mode == "none":
        return None
    parallel = asked["parallel_tool_calls"] and not chosen.one
    return Tools(listed, required=chosen.mode == "required", only=chosen.only, parallel=parallel)
