"""What a text has to be: every form in which a client may say so becomes one constraint. Pure.

Sources: OpenAI's API reference for `response_format`, and the forms that open-source servers have in common:
`structured_outputs`, and the older `guided_json`, `guided_regex`, `guided_choice` and `guided_grammar`.
"""

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from pillion.contracts.entries import MAX_CONSTRAINT, Constraint
from pillion.gateway.protocol import values
from pillion.gateway.protocol.errors import ApiError, bad
from pillion.gateway.protocol.request import Shape

MAX_CHOICES = 1000
MAX_CHOICE = 1024  # characters
# A model may like to write spaces without end; so many where JSON allows them are enough.
SPACES = r"[\x20\x0A\x0D\x09]{1,32}"
_EBNF = re.compile(r"(?m)^\s*[\w-]+\s*::=")
_KINDS = ("json", "regex", "choice", "grammar", "json_object")
_BLANKS = ("whitespace_pattern", "disable_any_whitespace")
_NAMED = ("name", "description", "schema", "strict")
FORMATS = ("text", "json_object", "json_schema")
NESTED: Mapping[str, Collection[str]] = {
    "response_format": ("type", "schema", "json_schema"),
    "response_format.json_schema": _NAMED,
    "structured_outputs": (*_KINDS, *_BLANKS),
}
"""The names that there are inside of fields."""

_long = values.text(MAX_CONSTRAINT)
_object = {"type": "object"}
_schema = {"anyOf": [_object, _long.schema]}
_choices = values.listed(values.text(MAX_CHOICE), MAX_CHOICES)


def _json(name: str, value: Any, options: Mapping[str, Any] | None = None) -> Shape:
    """`options`: what llguidance is told of it. A schema may also come as text."""
    if isinstance(value, str):
        try:
            value = json.loads(_long(name, value))
        except (ValueError, RecursionError):
            raise bad(
                name, f"{name} must be a JSON Schema; as a string it is no JSON.", "invalid_schema"
            ) from None
    schema = {key: item for key, item in values.mapping(name, value).items() if key != "x-guidance"}
    schema["x-guidance"] = {"whitespace_pattern": SPACES, **(options or {})}
    text = json.dumps(schema)
    return _shape(name, "json", text)


def _shape(name: str, kind: Any, text: str) -> Shape:
    if len(text) > MAX_CONSTRAINT:
        raise bad(name, f"{name} must have at most {MAX_CONSTRAINT} characters.", "string_too_long")
    return Shape(Constraint(kind, text), name)


@values.passes(_schema)
def schema(name: str, value: Any) -> Shape:
    """What cannot be enforced of it is refused."""
    return _json(name, value)


@values.passes(_long.schema)
def regex(name: str, value: Any) -> Shape:
    return _shape(name, "regex", _long(name, value))


@values.passes({**_choices.schema, "minItems": 1})
def choice(name: str, value: Any) -> Shape:
    """One of some texts."""
    texts = _choices(name, value)
    if not texts:
        raise bad(name, f"{name} must not be empty.", "empty_array")
    return _shape(name, "lark", "start: " + " | ".join(map(_literal, texts)))


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


@values.passes(_long.schema)
def grammar(name: str, value: Any) -> Shape:
    """In EBNF, as llama.cpp has it, or in Lark's notation."""
    text = _long(name, value)
    return _shape(name, "ebnf" if _EBNF.search(text) else "lark", text)


@values.passes({
    "anyOf": [
        {
            "type": "object", "required": ["type"], "additionalProperties": False,
            "properties": {"type": {"const": "text"}},
        },
        {
            "type": "object", "required": ["type"], "additionalProperties": False,
            "properties": {"type": {"const": "json_object"}, "schema": _object},
        },
        {
            "type": "object", "required": ["type", "json_schema"], "additionalProperties": False,
            "properties": {
                "type": {"const": "json_schema"},
                "json_schema": {
                    "type": "object", "required": ["schema"], "additionalProperties": False,
                    "properties": {
                        "name": {"type": "string"}, "description": {"type": ["string", "null"]},
                        "schema": _object, "strict": {"type": ["boolean", "null"]},
                    },
                },
            },
        },
    ],
})  # fmt: skip
def response_format(name: str, value: Any) -> Shape | None:
    """OpenAI's. Of a schema that is not strict what cannot be enforced is passed over."""
    given = values.mapping(name, value)
    kind = given.get("type")
    if kind not in FORMATS:
        raise bad(f"{name}.type", f"{name}.type must be one of {', '.join(FORMATS)}.", "invalid_value")
    _only(
        name,
        given,
        {"text": (), "json_object": ("schema",), "json_schema": ("json_schema",)}[kind],
        ("type",),
    )
    if kind == "text":
        return None
    if kind == "json_object":
        inner = given.get("schema")
        return _json(
            name if inner is None else f"{name}.schema", {"type": "object"} if inner is None else inner
        )
    path = f"{name}.json_schema"
    wanted = values.mapping(path, given.get("json_schema"))
    _only(path, wanted, _NAMED)
    for key, check in (
        ("name", values.text(1024)),
        ("description", values.text(1 << 16, empty=True)),
        ("strict", values.boolean),
    ):
        if wanted.get(key) is not None:
            check(f"{path}.{key}", wanted[key])
    if wanted.get("schema") is None:
        raise bad(f"{path}.schema", f"{path}.schema is required.", "missing_required_parameter")
    found = values.mapping(f"{path}.schema", wanted["schema"])
    return _json(f"{path}.schema", found, {} if wanted.get("strict") else {"lenient": True})


@values.passes({
    "type": "object", "additionalProperties": False,
    "properties": {
        key: {"anyOf": [member, {"type": "null"}]}
        for key, member in {
            "json": _schema, "regex": regex.schema, "choice": choice.schema, "grammar": grammar.schema,
            "json_object": {"type": "boolean"}, "whitespace_pattern": _long.schema,
            "disable_any_whitespace": {"type": "boolean"},
        }.items()
    },
})  # fmt: skip
def structured_outputs(name: str, value: Any) -> Shape:
    """vLLM's: one constraint, and how JSON may be spaced."""
    given = {key: item for key, item in values.mapping(name, value).items() if item is not None}
    _only(name, given, _KINDS, _BLANKS)
    if given.get("json_object") is False:
        del given["json_object"]
    kinds = [key for key in _KINDS if key in given]
    if len(kinds) != 1:
        raise bad(name, f"{name} must hold one of {', '.join(_KINDS)}.", "invalid_value")
    (kind,) = kinds
    path = f"{name}.{kind}"
    options: dict[str, Any] = {}
    if (pattern := given.get("whitespace_pattern")) is not None:
        options["whitespace_pattern"] = _long(f"{name}.whitespace_pattern", pattern)
    if values.boolean(f"{name}.disable_any_whitespace", given.get("disable_any_whitespace", False)):
        options |= {"whitespace_pattern": None, "whitespace_flexible": False}
    match kind:
        case "json":
            return _json(path, given[kind], options)
        case "json_object":
            values.boolean(path, given[kind])
            return _json(path, {"type": "object"}, options)
    return {"regex": regex, "choice": choice, "grammar": grammar}[kind](path, given[kind])  # type: ignore[no-any-return]


def shape(asked: Mapping[str, Any]) -> Shape | None:
    """The one constraint of a body's fields. Raises ApiError for several."""
    found = [asked[name] for name in FIELDS if asked[name] is not None]
    if len(found) > 1:
        first, second = (one.param.partition(".")[0] for one in found[:2])
        raise bad(second, f"{first} and {second} cannot be asked for together.", "invalid_value")
    pattern = asked["guided_whitespace_pattern"]
    if pattern is not None:
        if asked["guided_json"] is None:
            raise bad(
                "guided_whitespace_pattern", "guided_whitespace_pattern needs guided_json.", "invalid_value"
            )
        known = json.loads(found[0].constraint.text)
        return _json("guided_json", known, {"whitespace_pattern": pattern})
    return found[0] if found else None


FIELDS = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)


def _only(name: str, given: Mapping[str, Any], *known: tuple[str, ...]) -> None:
    names = sum(known, ())
    for key in given:
        if key not in names:
            raise _unknown(f"{name}.{key[:64]}", names)


def _unknown(path: str, names: tuple[str, ...]) -> ApiError:
    return bad(path, f"Unknown parameter: {path}. There are {', '.join(names)}.", "unknown_parameter")
