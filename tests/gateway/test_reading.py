# ruff: noqa: E501 - texts are what they are
"""An answer's text told apart: whatever the portions, what is no call stays content byte for byte."""

import json
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillion.gateway.calls import FORMS
from pillion.gateway.protocol.request import CallForm, Calls, Output
from pillion.gateway.reading import reader
from pillion.gateway.source import Arguments, Called, Part, Text

NAMES = ("weather", "add")
ARGUMENTS = '{"city": "Bür\\"g}", "n": [1, {"x": null}], "é": "</tool_call>[ARGS];"}'
CALL = {
    "hermes": '<tool_call>\n{"name": "weather", "arguments": %s}\n</tool_call>',
    "llama3_json": '<|python_tag|>{"name": "weather", "parameters": %s}',
    "mistral": '[TOOL_CALLS][{"name": "weather", "arguments": %s}]',
}


@dataclass
class Told:
    """What a client makes of an answer's parts."""

    reasoning: str = ""
    content: str = ""
    calls: list[list[str]] = field(default_factory=list)

    def add(self, part: Part) -> None:
        match part:
            case Text("reasoning", text):
                self.reasoning += text
            case Text(_, text):
                self.content += text
            case Called(index, name):
                assert index == len(self.calls)
                self.calls.append([name, ""])
            case Arguments(index, text):
                assert index == len(self.calls) - 1, "calls come one after the other"
                self.calls[index][1] += text


def spec(form: CallForm, **more: Any) -> Output:
    thought = {key: more.pop(key) for key in ("thinks", "thinking") if key in more}
    return Output("chat", calls=Calls(form, NAMES, **more), **thought)


def told(output: Output, *portions: str) -> Told:
    """Of the portions, which are all of the text."""
    reading, result = reader(output), Told()
    for portion in portions:
        for part in reading.push(portion):
            result.add(part)
    for part in reading.finish():
        result.add(part)
    return result


FRAGMENTS = [
    *(call % arguments for call in CALL.values() for arguments in (ARGUMENTS, "{}", '{"a": 1,}', "[1]", '{"')),
    *(mark for form in FORMS.values() for mark in form.MARKS),
    *("<think>", "</think>", " ", "\n\n", "Hello", "<", "[", "{", "}", "]", ";", ",", '"', "\\", "<tool", "[TOOL_"),
    '{"name": "weather", "parameters": {"a": 1}}', '{"name": "nobody", "arguments": {}}', '{"name": "add"}',
    '{"arguments": {"a": "\\u00e9"}, "id": 5, "name": "add"}', '{"name": "add", "arguments": null}', "é🙂",
    'weather[ARGS]{"a": 1}', 'add[CALL_ID]x1[ARGS]{}', "add{}", "nobody[ARGS]{}", "{'a': 1}", '{"a": "\x01"}',
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join)
OUTPUTS = st.builds(
    lambda form, think, **more: spec(form, thinks=think > 0, thinking=think > 1, **more),
    st.sampled_from(list(FORMS)),
    st.integers(0, 2),
    single=st.booleans(),
    certain=st.booleans(),
    early=st.booleans(),
)


@settings(max_examples=300)
@given(OUTPUTS, TEXTS, st.lists(st.integers(0, 200), max_size=10))
def test_portions_do_not_matter(output: Output, text: str, cuts: list[int]) -> None:
    borders = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    whole = told(output, text)
    assert told(output, *(text[a:b] for a, b in pairwise(borders))) == whole
    assert told(output, *text) == whole
    if not (output.calls.certain or output.calls.early):
        assert all(isinstance(json.loads(arguments), dict) for _, arguments in whole.calls)
    assert all(name in NAMES for name, _ in whole.calls)
    if not whole.calls and not output.thinks and not output.calls.certain:
        assert whole.content == text
    assert len(whole.calls) <= 1 or not output.calls.single


@given(OUTPUTS, st.text('<>[]{}"\\;:,/_ \ntolcaTOL|think', max_size=60), st.integers(0, 60))
def test_nothing_makes_it_fail(output: Output, text: str, cut: int) -> None:
    whole = told(output, text)
    assert told(output, text[:cut], text[cut:]) == whole
    if not output.thinks and not whole.calls and not output.calls.certain:
        assert whole.content == text


A = ["add", '{"a": 1}']
W = ["weather", "{}"]
EXAMPLES: list[tuple[CallForm, str, str, list[list[str]]]] = [
    # Hermes
    ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', "", [A]),
    ("hermes", 'Sure.\n<tool_call>\n{"arguments": {"a": 1}, "name": "add"}\n</tool_call>\n', "Sure.", [A]),
    ("hermes", f"{CALL['hermes'] % '{}'}\n{CALL['hermes'] % ARGUMENTS} done ", " done ", [W, ["weather", ARGUMENTS]]),
    ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1}}', "", [A]),
    ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1}} what', " what", [A]),
    ("hermes", '<tool_call>{"name": "weather"}</tool_call>', "", [W]),
    ("hermes", '<tool_call>{"name": "weather", "arguments": null}</tool_call>', "", [W]),
    ("hermes", '<tool_call>oops <tool_call>{"name": "add", "parameters": {"a": 1}}</tool_call>', "<tool_call>oops", [A]),
    # Llama 3
    ("llama3_json", '{"name": "add", "parameters": {"a": 1}}', "", [A]),
    ("llama3_json", '\n {"type": "function", "name": "add", "parameters": {"a": 1}} ', "", [A]),
    ("llama3_json", '<|python_tag|>{"name": "add", "parameters": {"a": 1}}; {"name": "weather"}', "", [A, W]),
    ("llama3_json", 'Well: <|python_tag|>{"name": "add", "parameters": {"a": 1}} so', "Well: so", [A]),
    # Mistral
    ("mistral", '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}, {"name": "weather"}]', "", [A, W]),
    ("mistral", '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}] ok', " ok", [A]),
    ("mistral", 'Hm [TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]weather[CALL_ID]abc[ARGS]{}', "Hm", [A, W]),
    ("mistral", '[TOOL_CALLS]add{"a": 1}', "", [A]),
    ("mistral", '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}, oops', ", oops", [A]),
]  # fmt: skip


@pytest.mark.parametrize(("form", "text", "content", "calls"), EXAMPLES)
def test_calls_in_each_form(form: CallForm, text: str, content: str, calls: list[list[str]]) -> None:
    whole = told(spec(form), text)
    assert (whole.content, whole.calls) == (content, calls)
    assert told(spec(form, certain=True), *text).calls == whole.calls
    assert told(spec(form, early=True), *text) == whole
    only = told(spec(form, single=True), *text)
    assert only.calls == calls[:1] and whole.content.startswith(only.content)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        *(
            (form, CALL[form] % arguments)
            for form in FORMS
            for arguments in ("[]", "5", '"{}"', '{"a": 1', '{"a": 1,}', "{a: 1}", '{"a": nan}', '{"a": "\n"}')
        ),
        *((form, CALL[form].replace("weather", "nobody") % "{}") for form in FORMS),
        *((form, CALL[form].replace('"weather"', "7") % "{}") for form in FORMS),
        ("hermes", "<tool_call>"), ("hermes", "a <tool_call b </tool_call> \n"), ("hermes", "<tool_call>{}</tool_call>"),
        ("hermes", "<tool_call>" + "[" * 5000), ("hermes", '<tool_call>{"name": "add", "arguments": ' + "[" * 5000),
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a": ' + "[" * 5000 + "]" * 5000 + "}}</tool_call>"),
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a": "\\'),
        ("llama3_json", '{"city": "Rome"}'), ("llama3_json", '[{"name": "add"}]'), ("llama3_json", '  {"name": "add"'),
        ("llama3_json", 'He said {"name": "add", "parameters": {}}'), ("llama3_json", "<|python_tag|>print(1) "),
        ("mistral", "[TOOL_CALLS]"), ("mistral", "[TOOL_CALLS][]"), ("mistral", "[TOOL_CALLS]nobody[ARGS]{}"),
        ("mistral", "[TOOL_CALLS]add[ARGS]5"), ("mistral", "[TOOL_CALLS]add[CALL_ID]{}"), ("mistral", "add[ARGS]{}"),
    ],
)  # fmt: skip
def test_what_is_no_call_is_content(form: CallForm, text: str) -> None:
    whole = told(spec(form), *text)
    assert whole.calls == [] and whole.content == text


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize(
    ("arguments", "told_early"),
    [
        # What cannot begin an object is content in a stream too.
        ("[]", None), ('"{}"', None), ("{a: 1}", None), ("{'a': 1}", None), ("5", None), ("{5}", None), (" { [1]}", None),
        # Else what was told has been told; what is behind it is content.
        ('{"a": 1', '{"a": 1'), ('{"a": 1,}', '{"a": 1,}'), ('{"a": nan}', '{"a": nan}'), ('{"a": "\n"}', '{"a": "'),
        ('{"a": (1)}', '{"a": '), ('{"a": "\ud800"}', '{"a": "\ud800"}'),
    ],
)  # fmt: skip
def test_a_call_that_breaks_off_in_a_stream_is_told_as_broken(
    form: CallForm, arguments: str, told_early: str | None
) -> None:
    text = CALL[form] % arguments
    if arguments == '{"a": 1':
        text = text[: text.index(arguments) + len(arguments)]  # cut off by max_tokens
    output = spec(form, early=True)
    whole = told(output, *text)
    assert told(spec(form), *text).calls == [] and told(output, text) == whole
    reading = reader(output)
    for character in text:
        reading.push(character)
    reading.finish()
    if told_early is None:
        assert (whole.calls, whole.content, reading.broken) == ([], text, False)
    else:
        assert (whole.calls, reading.broken) == ([["weather", told_early]], True)
        assert whole.content == "" or text.endswith(whole.content)


def test_one_call_has_arguments_once() -> None:
    text = '<tool_call>{"name": "add", "arguments": {"a": 1}, "name": "weather", "parameters": {"b": 2}}</tool_call>'
    for early in (True, False):
        assert told(spec("hermes", early=early), *text).calls == [A]


@pytest.mark.parametrize("form", list(FORMS))
def test_arguments_that_may_come_early_come_as_they_are_written(form: CallForm) -> None:
    text = CALL[form] % ARGUMENTS
    for way, most in (("certain", 2), ("early", 2), (None, len(ARGUMENTS))):
        reading, longest = reader(spec(form, **{way: True} if way else {})), 0
        for character in text:
            pieces = [part.text for part in reading.push(character) if isinstance(part, Arguments)]
            longest = max([longest, *map(len, pieces)])
        assert longest == most
    # Cut off before them there is no call, and no content; within, what was written is all there is.
    for end in range(text.index(ARGUMENTS) + 1):
        assert told(spec(form, certain=True), text[:end]) == Told()
    cut = told(spec(form, certain=True), *text[: text.index("[1")])
    assert cut.calls == [["weather", ARGUMENTS[: ARGUMENTS.index("[1")]]] and not cut.content


def test_only_a_single_call_ends_the_text() -> None:
    for single in (True, False):
        reading = reader(spec("hermes", single=single))
        reading.push(CALL["hermes"] % "{}")
        assert reading.over is single
        assert reading.push("more") == (() if single else (Text("content", "more"),))


@pytest.mark.parametrize(
    ("opened", "text", "reasoning", "content"),
    [
        (False, "<think>\nHm.\n</think>\n\nYes. ", "Hm.", "Yes. "),
        (False, "\n<think>Hm", "Hm", ""),
        (False, "<think>\n\n</think>\n\nYes", "", "Yes"),
        (False, " Yes <think>no</think>", "", " Yes <think>no</think>"),
        (False, "<thin", "", "<thin"),
        (True, "Hm. </think>\nYes", "Hm.", "Yes"),
        (True, "<think>\nHm </thin </think>Yes</think>", "Hm </thin", "Yes</think>"),
        (True, "Hm ", "Hm ", ""),
        (True, "", "", ""),
    ],
)
def test_reasoning_comes_first(opened: bool, text: str, reasoning: str, content: str) -> None:
    whole = told(Output("chat", thinks=True, thinking=opened), *text)
    assert (whole.reasoning, whole.content) == (reasoning, content)
    # Calls come behind it; in it there are none.
    call = CALL["hermes"] % "{}"
    both = told(spec("hermes", thinks=True, thinking=True), f"I call {call}.</think>\n\nOk. {call}")
    assert (both.reasoning, both.content, both.calls) == (f"I call {call}.", "Ok.", [W])
