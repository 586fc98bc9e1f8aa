"""Texts drawn under the grammar of each form are calls that the form reads, with arguments as described."""

import json
import random
from typing import Any

import jsonschema_rs
import pytest

from pillion.contracts.entries import Constraint
from pillion.gateway.calls import FORMS
from pillion.gateway.calls.grammar import arguments, lark
from pillion.gateway.protocol.request import CallForm, Calls, Output
from pillion.gateway.reading import reader
from pillion.gateway.source import Arguments, Called, Text
from pillion.grammar.worker import Grammars
from pillion.modelfiles import locate
from pillion.modelfiles.vocabulary import Vocabulary, vocabulary

FUNCTIONS: list[dict[str, Any]] = [
    {"name": "weather", "parameters": {
        "type": "object", "required": ["city"], "additionalProperties": False,
        "properties": {"city": {"type": "string", "maxLength": 5}, "unit": {"enum": ["C", "°F", None]}},
    }},
    {"name": "add-2.x", "description": "more", "parameters": {
        "properties": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 3}},
        "required": ["n"], "additionalProperties": False, "$defs": {"n": {"enum": [1, 2.5, "\\"]}},
    }},
    {"name": "now"},
]  # fmt: skip
TOOL_CALLS, ARGS = 0, 1  # tokens that stand for control tokens of Mistral's
MOST = 4000  # tokens


@pytest.fixture(scope="module")
def known(tiny_model: Any) -> Vocabulary:
    return vocabulary(locate(str(tiny_model("llama3"))))


@pytest.fixture(scope="module")
def grammars(known: Vocabulary) -> Grammars:
    return Grammars(known, len(known.pieces))


def drawn(grammars: Grammars, known: Vocabulary, grammar: str, seed: int) -> tuple[str, bool]:
    """A random text that the grammar lets be, and whether it came to its end."""
    draw, pieces = random.Random(seed), list[bytes]()
    assert grammars.check(Constraint("lark", grammar)) == ""
    grammars.open(0, Constraint("lark", grammar), [])
    for _ in range(MOST):
        bits, made = grammars.mask(0)
        assert not made.error, made.error
        allowed = [token for token in range(len(known.pieces)) if bits[token // 8] >> token % 8 & 1]
        token = draw.choice(allowed)
        if token in known.ends:
            return b"".join(pieces).decode(), True
        pieces.append({TOOL_CALLS: b"[TOOL_CALLS]", ARGS: b"[ARGS]"}.get(token, known.pieces[token]))
        grammars.note(0, token)
    return b"".join(pieces).decode(errors="ignore"), False


@pytest.mark.parametrize("several", [True, False])
@pytest.mark.parametrize("controls", [{}, {"[TOOL_CALLS]": TOOL_CALLS, "[ARGS]": ARGS}])
@pytest.mark.parametrize("form", list(FORMS))
def test_what_is_drawn_is_calls(
    grammars: Grammars, known: Vocabulary, form: CallForm, controls: dict[str, int], several: bool
) -> None:
    grammar = lark(FORMS[form].frame(controls), FUNCTIONS, controls, several=several)
    names = tuple(function["name"] for function in FUNCTIONS)
    called: set[str] = set()
    for seed in range(20):
        text, whole = drawn(grammars, known, grammar, seed)
        assert whole, text
        assert ("[ARGS]" in text) is (form == "mistral" and bool(controls)), (
            "the form that the model has tokens for"
        )
        for certain in (True, False):
            reading = reader(Output("chat", calls=Calls(form, names, certain=certain)))
            calls: list[list[str]] = []
            parts = [part for character in text for part in reading.push(character)] + [*reading.finish()]
            for part in parts:
                match part:
                    case Called(_, name):
                        calls.append([name, ""])
                    case Arguments(_, more):
                        calls[-1][1] += more
                    case Text():
                        raise AssertionError(f"{text!r} is not all calls")
            assert len(calls) > 0 if several else len(calls) == 1
            for name, given in calls:
                (function,) = (function for function in FUNCTIONS if function["name"] == name)
                described = function.get("parameters", {"maxProperties": 0})
                assert jsonschema_rs.is_valid(described, json.loads(given)), given
                called.add(name)
    assert len(called) > 1


def test_arguments_are_spaced_as_templates_write_them(grammars: Grammars, known: Vocabulary) -> None:
    grammar = lark(FORMS["hermes"].frame({}), FUNCTIONS[:1], {}, several=False)
    tokens = {piece: token for token, piece in reversed(list(enumerate(known.pieces)))}
    for given, fits in (
        ('{"city": "x", "unit": null}', True),
        ('{"city":"x"}', False),
        ('{ "city": "x"}', False),
    ):
        text = FORMS["hermes"].write("weather", given)
        grammars.open(0, Constraint("lark", grammar), [tokens[bytes([byte])] for byte in text.encode()])
        _, made = grammars.mask(0)
        assert (made.accepting and not made.error) is fits, given


def test_functions_that_describe_nothing_take_nothing() -> None:
    for function, anything in (({"name": "f"}, False), ({"name": "f", "parameters": {}}, True)):
        schema = json.loads(arguments(function))
        assert schema["type"] == "object" and schema.get("additionalProperties", True) is anything


def test_what_cannot_be_enforced_is_refused_of_a_function_that_is_strict(grammars: Grammars) -> None:
    for strict in (True, False):
        function = {"name": "f", "strict": strict, "parameters": {"properties": {"a": {"not": {}}}}}
        grammar = lark(FORMS["hermes"].frame({}), [function], {})
        error = grammars.check(Constraint("lark", grammar))
        assert ("not" in error) is strict


@pytest.mark.parametrize("form", list(FORMS))
def test_calls_or_content_as_described(grammars: Grammars, known: Vocabulary, form: CallForm) -> None:
    schema = '{"enum": ["", "x"]}'
    grammar = lark(FORMS[form].frame({}), FUNCTIONS[2:], {}, content=schema)
    texts = {drawn(grammars, known, grammar, seed)[0] for seed in range(20)}
    assert {'""', '"x"'} < texts
    for text in texts - {'""', '"x"'}:
        reading = reader(Output("chat", calls=Calls(form, ("now",))))
        reading.push(text)
        assert reading.calls > 0, text
