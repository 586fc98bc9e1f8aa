# ruff: noqa: E501 - tables are what they are
"""How an answer is drawn and read, by what was asked and what the model does."""

from typing import Any

import pytest

from pillion.gateway.protocol import forms
from pillion.gateway.protocol.errors import ApiError
from pillion.gateway.protocol.request import Calls, Generation
from pillion.gateway.shaping import shaped

FUNCTION = {"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}
TOOLS = [
    {"type": "function", "function": FUNCTION},
    {"type": "function", "function": {"name": "g", "strict": True}},
]
CHAT = {"messages": [{"role": "user", "content": "x"}]}
NAMED = {"type": "function", "function": {"name": "g"}}
SCHEMA = {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"const": 5}}}}
REGEX = {"guided_regex": "a+"}


def of(
    more: dict[str, Any],
    form: Any = "hermes",
    *,
    thinks: bool = False,
    opened: bool = False,
    tools: Any = TOOLS,
) -> Generation:
    body = CHAT | ({"tools": tools} if tools else {}) | more
    return shaped(forms.chat(body), form, {}, thinks=thinks, opened=opened)


@pytest.mark.parametrize(
    ("more", "calls", "several"),
    [
        ({}, Calls("hermes", ("f", "g")), None),
        ({"parallel_tool_calls": False}, Calls("hermes", ("f", "g"), single=True), None),
        ({"tool_choice": "required"}, Calls("hermes", ("f", "g"), certain=True), True),
        (
            {"tool_choice": "required", "parallel_tool_calls": False},
            Calls("hermes", ("f", "g"), certain=True),
            False,
        ),
        ({"tool_choice": NAMED}, Calls("hermes", ("g",), certain=True), False),
        ({"tool_choice": "none"}, None, None),
    ],
)
def test_calls(more: dict[str, Any], calls: Calls | None, several: bool | None) -> None:
    asked = of(more)
    assert asked.output.calls == calls
    if several is None:
        assert asked.shape is None, "the text is free"
        return
    assert asked.shape is not None and asked.shape.param == "tools"
    assert ("call)*" in asked.shape.constraint.text) is several
    assert ('"f' in asked.shape.constraint.text) is ("f" in calls.names if calls else False)
    assert [part.param for part in asked.shape.parts] == [
        f"tools[{index}].function.parameters"
        for index in (0, 1)
        if several is not False or index or calls.names[0] == "f"
    ]


def test_calls_and_a_schema_for_what_is_no_call() -> None:
    alone = of(SCHEMA, tools=None)
    assert alone.shape is not None and alone.shape.constraint.kind == "json" and not alone.shape.parts
    either = of(SCHEMA)
    assert either.shape is not None and either.output.calls == Calls("hermes", ("f", "g"))
    assert "start: calls | content\n" in either.shape.constraint.text
    assert either.shape.param == alone.shape.param and either.shape.parts[0] == alone.shape
    forced = of(SCHEMA | {"tool_choice": "required"}).shape
    assert forced is not None and "content" not in forced.constraint.text


def test_reasoning_is_read_whatever_is_asked_for() -> None:
    for opened in (True, False):
        for more, tools in (({}, None), (SCHEMA, None), (REGEX, None), ({"tool_choice": "required"}, TOOLS)):
            output = of(more, thinks=True, opened=opened, tools=tools).output
            assert (output.thinks, output.thinking) == (True, opened)
    assert not of({}, opened=True).output.thinking


@pytest.mark.parametrize(
    ("more", "form", "param"),
    [
        ({}, None, "tools"),
        (REGEX, "hermes", "guided_regex"),
        (REGEX | {"tool_choice": "required"}, "hermes", "guided_regex"),
        ({"tool_choice": "required", "tools": [TOOLS[0] | {"function": FUNCTION | {"parameters": {"enum": ["x" * 140_000]}}}]},
         "hermes", "tools"),
    ],
)  # fmt: skip
def test_what_does_not_go_together(more: dict[str, Any], form: Any, param: str) -> None:
    with pytest.raises(ApiError) as refusal:
        of(more, form)
    assert (refusal.value.status, refusal.value.param) == (400, param)
    assert of(REGEX | {"tool_choice": "none"}).output.calls is None
