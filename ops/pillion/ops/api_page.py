"""`docs/api.md`: the API as the table of fields has it, in the text beside this module."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pillion.gateway.absent import ABSENT
from pillion.gateway.fields import (
    BUDGET,
    CHAT,
    COMPLETION,
    DETOKENIZE,
    FIELDS,
    GENERATE,
    STREAM_OPTIONS,
    TABLE,
    TOKENIZE,
    Field,
    Form,
)
from pillion.gateway.meanings import MEANINGS, ROUTES
from pillion.gateway.protocol.values import INT32, INT64

_OPEN_ENDS = (INT32, -INT32, INT64, -INT64 - 1)
_SAID_ELSEWHERE = {
    "messages": "array of messages",
    "stream_options": "object",
    "response_format": "object with `type`",
    "structured_outputs": "object",
    "guided_json": "JSON Schema, or one as text",
    "tools": "at most 128 functions",
    "tool_choice": '`"none"`, `"auto"`, `"required"`, a named function or `allowed_tools`',
}

_TEXT = Path(__file__).with_suffix(".md")


def page() -> str:
    """The text with its tables."""
    both = [field for field in FIELDS if set(field.forms) & set(GENERATE)]
    harmless = [field for field in both if field.check is None and not field.refused]
    refused = [field for field in (*both, *STREAM_OPTIONS.values()) if field.refused]
    tables = {
        "endpoints": _table("endpoint", "what it does")(
            [f"`{route}`", does] for route, does in ROUTES.items()
        ),
        "fields": _acted(both, forms=True),
        "stream_options": _acted(STREAM_OPTIONS.values()),
        "harmless": _table("field", "for", "values")(
            [f"`{field.name}`", _forms(field), field.why.removeprefix("it must be ")] for field in harmless
        ),
        "refused": _table("field", "for", "why", "taken all the same")(
            [f"`{field.name}`", _forms(field), field.why, _values(field.unless)] for field in refused
        ),
        "tokenize": _acted(_of(TOKENIZE)),
        "tokenize_refused": ", ".join(
            f"`{field.name}` ({field.why})" for field in _of(TOKENIZE) if field.refused
        ),
        "detokenize": _acted(_of(DETOKENIZE)),
        "budget": _acted(BUDGET.values()),
        "absent": _table("endpoints", "why, or what instead")(
            [", ".join(f"`{path}`" for path, why in ABSENT.items() if why == reason), reason]
            for reason in dict.fromkeys(ABSENT.values())
        ),
    }
    text = _TEXT.read_text()
    for name, table in tables.items():
        text = text.replace(f"{{{name}}}", table)
    return text


def _of(form: Form) -> list[Field]:
    return list(TABLE[form].values())


def _table(*head: str) -> Callable[[Iterable[list[str]]], str]:
    def rows(cells: Iterable[list[str]]) -> str:
        return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *cells))

    return rows


def _acted(fields: Iterable[Field], forms: bool = False) -> str:
    rows = []
    for field in fields:
        if field.check is not None:
            default = "" if field.default in (None, (), {}) else f"`{json.dumps(field.default)}`"
            values = _SAID_ELSEWHERE.get(field.name) or said(field.check.schema)
            for_ = [_forms(field)] if forms else []
            rows.append([f"`{field.name}`", *for_, values, default, MEANINGS[field.name]])
    return _table("field", *(["for"] if forms else []), "values", "default", "meaning")(rows)


def _forms(field: Field) -> str:
    return {(True, False): "chats", (False, True): "completions", (True, True): "both"}[
        CHAT in field.forms, COMPLETION in field.forms
    ]


def _values(values: tuple[Any, ...]) -> str:
    return ", ".join(f"`{json.dumps(value)}`" for value in values)


def said(schema: Mapping[str, Any]) -> str:
    """A schema in words."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(said, schema["anyOf"])))
    if "enum" in schema:
        return _values(tuple(schema["enum"]))
    match schema.get("type"):
        case "boolean":
            return "boolean"
        case "integer" | "number" as kind:
            return ", ".join((str(kind), *_bounds(schema)))
        case "string":
            most = schema.get("maxLength", INT32)
            return f"text of at most {most} characters" if most < 1 << 20 else "text"
        case "array":
            most = schema.get("maxItems", INT32)
            several = f"at most {most} of" if most < 1 << 20 else "array of"
            return f"{several} {said(schema['items'])}"
    return "object"


def _bounds(schema: Mapping[str, Any]) -> Iterable[str]:
    for key, word in (("minimum", "at least"), ("exclusiveMinimum", "above"), ("maximum", "at most")):
        if key in schema and schema[key] not in _OPEN_ENDS:
            yield f"{word} {schema[key]:g}"
