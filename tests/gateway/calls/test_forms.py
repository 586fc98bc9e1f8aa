"""Which form a template speaks of, and that each form reads what it writes."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillion.gateway.calls import FORMS, form_of, identity, knows_tools
from pillion.gateway.protocol.request import Calls, Output
from pillion.gateway.reading import reader
from pillion.gateway.source import Arguments, Called

JSON = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=3),
    ),
    max_size=4,
)


@settings(max_examples=40)
@given(st.sampled_from(list(FORMS)), JSON, st.booleans(), st.booleans())
def test_a_form_reads_what_it_writes(
    form: Any, arguments: dict[str, Any], certain: bool, ascii: bool
) -> None:
    written = json.dumps(arguments, ensure_ascii=ascii)
    text = FORMS[form].write("do.it-1", written)
    reading = reader(Output("chat", calls=Calls(form, ("do.it-1",), certain=certain)))
    parts = [part for character in text for part in reading.push(character)] + list(reading.finish())
    assert parts[0] == Called(0, "do.it-1")
    assert all(isinstance(part, Arguments) for part in parts[1:])
    assert "".join(part.text for part in parts[1:]) == written
    assert reading.calls == 1


@pytest.mark.parametrize(
    ("template", "form", "knows"),
    [
        ("{{ messages }}", "hermes", False),
        ("{% if tools %}{{ tools }}{% endif %}", None, True),
        ("{% if tools %}# Tools\n<tool_call>{...}</tool_call>{% endif %}", "hermes", True),
        ("{% if tools %}<tool_call>\n<function=name>\n<parameter=x>{% endif %}", None, True),
        ("{% if tools %}<tool_call>name\n<arg_key>{% endif %}", None, True),
        ("{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]", "mistral", True),
        ('{{- \'{"name": function name, "parameters": dictionary} \' }}{{ tools }}', "llama3_json", True),
        ("{{ '<|python_tag|>' }}{{ tools }}", "llama3_json", True),
    ],
)  # fmt: skip
def test_templates_say_in_which_form_their_model_calls(template: str, form: str | None, knows: bool) -> None:
    assert (form_of(template), knows_tools(template)) == (form, knows)


def test_ids_are_the_same_everywhere_and_of_the_length_that_templates_want() -> None:
    assert (
        identity("hermes", "r 0 0")
        == identity("hermes", "r 0 0")
        == "call_" + identity("hermes", "r 0 0")[5:]
    )
    assert len({identity("hermes", f"r {choice} {index}") for choice in range(5) for index in range(5)}) == 25
    short = identity("mistral", "r 0 0")
    assert len(short) == 9 and short.isalnum()
