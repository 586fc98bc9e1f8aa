# ruff: noqa: E501 - tables are what they are
"""Templates in the style of well-known models', rendered as `transformers` renders them."""

import itertools
from pathlib import Path
from typing import Any

import jinja2
import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from pillion.gateway.guard import Guard, bare
from pillion.gateway.protocol import forms
from pillion.gateway.templates import ChatTemplate, TemplateError
from pillion.modelfiles import SpecialTokens

SOURCES = {file.stem: file.read_text() for file in (Path(__file__).parent / "chat_templates").glob("*.jinja")}
SPECIAL = SpecialTokens(bos="<s>", eos="</s>")

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "°F"]}},
    "required": ["city"],
}
TOOLS = [
    {"type": "function", "function": {"name": "wetter", "description": 'für "Orte" & <天気>', "parameters": CITY}},
    {"type": "function", "function": {"name": "add", "description": "", "parameters": {"type": "object", "properties": {
        "n": {"type": "array", "items": {"type": "number"}}, "o": {"type": "object", "properties": {"p": {}}}}}}},
    {"type": "function", "function": {"name": "now", "parameters": {}}},
]  # fmt: skip


def call(identity: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


FIRST = said("user", "  Hello — 你好 <b>&amp;</b> 'it'\r\n")
ANSWER = said("assistant", "<think>\nhm\n</think>\n\nHi 👋 \n")
SYSTEM = said("system", " Be brief. ")
ONE_CALL = said("assistant", None, tool_calls=[call("abc123def", "wetter", '{"city": "Köln", "unit": "°F"}')])
TWO_CALLS = said("assistant", "Both: ", tool_calls=[
    call("abc123def", "wetter", '{"city": "Rom"}'), call("123456789", "add", '{"n": [1, 2.5, null], "o": {"p": "\\"<"}}')
])  # fmt: skip
RESULT = said("tool", '{"grad": 7}', tool_call_id="abc123def")
CHATS: dict[str, list[dict[str, Any]]] = {
    "one": [FIRST],
    "turns": [FIRST, ANSWER, said("user", "and now?")],
    "system": [SYSTEM, FIRST, ANSWER, said("user", "")],
    "two systems": [SYSTEM, FIRST, said("system", "Or not.")],
    "parts": [SYSTEM, said("user", [{"type": "text", "text": "a "}, {"type": "text", "text": " b"}])],
    "answered": [FIRST, ANSWER],
    "reasoned": [FIRST, said("assistant", "So.", reasoning_content="Well, "), said("user", "Why?")],
    "reasoned last": [FIRST, said("assistant", "So.", reasoning="Well,\n")],
    "call": [FIRST, ONE_CALL, RESULT],
    "call answered": [SYSTEM, FIRST, ONE_CALL, RESULT, said("assistant", "7."), said("user", "Thanks.")],
    "calls": [
        FIRST,
        TWO_CALLS,
        RESULT,
        said("tool", "3", tool_call_id="123456789"),
        said("assistant", "Both."),
    ],
    "backwards": [ANSWER, FIRST],
}
KWARGS: list[dict[str, Any]] = [
    {},
    {"enable_thinking": False, "tools_in_user_message": False, "thinking": True, "date_string": "1 Feb 1999"},
    {"builtin_tools": ["wetter", "code_interpreter"], "date_string": "heute", "reasoning_effort": "high"},
]


def rendered(template: ChatTemplate, body: dict[str, Any], **arguments: Any) -> str:
    """By our code, from the request on."""
    asked: Any = forms.tokenize(body).prompt
    return bare(template.render(asked.messages, tools=asked.tools, **arguments))


def reference(source: str, body: dict[str, Any], prompt: bool, kwargs: dict[str, Any]) -> str:
    """By `transformers`, of the same messages; the content of text models is a text."""
    messages: Any = forms.tokenize(body).prompt.messages
    (text,), _ = render_jinja_template(
        [list(messages)], tools=body.get("tools"), chat_template=source, add_generation_prompt=prompt,
        bos_token="<s>", eos_token="</s>", **kwargs,
    )  # fmt: skip
    return str(text)


@pytest.mark.parametrize("name", SOURCES)
def test_every_template_renders_every_chat_as_transformers_does(name: str) -> None:
    source, equal, refused = SOURCES[name], 0, 0
    template = ChatTemplate({"default": source}, SPECIAL, Guard(("<s>", "</s>")))
    for chat, tools, prompt, kwargs in itertools.product(CHATS.values(), ([], TOOLS), (True, False), KWARGS):
        body = {"messages": chat} | ({"tools": tools} if tools else {})
        try:
            expected = reference(source, body, prompt, kwargs)
        except (jinja2.TemplateError, TypeError):
            refused += 1
            with pytest.raises(TemplateError):
                rendered(template, body, add_generation_prompt=prompt, kwargs=kwargs)
            continue
        # The day may change in between.
        ours = rendered(template, body, add_generation_prompt=prompt, kwargs=kwargs)
        assert ours == expected or ours == reference(source, body, prompt, kwargs), (chat, kwargs)
        equal += 1
    assert equal > 50, (equal, refused)


def test_they_are_what_is_said_of_them() -> None:
    assert len(SOURCES) == 12
    for word in ("generation", "strftime_now", "raise_exception", "indent=4", "separators=", "ensure_ascii", "break",
                 "continue", "namespace(", "macro", "caller()", "items()", "selectattr", "[::-1]"):  # fmt: skip
        assert any(word in source for source in SOURCES.values()), word
