"""From a constraint to the grammar that llguidance compiles, and from its errors to ours. Pure."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from llguidance import LLMatcher, regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from pillion.contracts.entries import Constraint

# A token is allowed exactly if the text with it can still become one that fits. llguidance would else force
# its own tokenization of what is certain, for which it would need the tokenizer.
_OPTIONS = '%llguidance {"no_forcing": true}'

_BEFORE = """
start: before /[ \\n]{{0,8}}/ @rest
before[lazy]: /(?s:.*){after}/
"""

_PLACE = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")
_JSON_ERROR = "failed to compile JSON schema: "
_REGEX_ERROR = re.compile(r'^invalid regex ".*" \(in regex\): ', re.DOTALL)

# Where a JSON Schema holds others: in an object of them, in an array of them, or as the value itself.
_SHARED = ("$defs", "definitions")  # at the top, for references
_MAPS = ("properties", "patternProperties")
_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "not")
MAX_LOOKS = 200  # schemas that are tried in search of the one that is at fault


class GrammarError(ValueError):
    """The constraint cannot be compiled; the message says why, and where in it."""


def grammar(constraint: Constraint) -> str:
    """Raises GrammarError."""
    text = constraint.text
    match constraint.kind:
        case "json":
            lark = f"start: %json {text}"
        case "regex":
            lark = f"start: /{regex_to_lark(text, 'd')}/"
        case "lark":
            lark = text
        case "ebnf":
            try:
                lark = any_to_lark(text)
            except RecursionError:
                raise GrammarError("it is nested too deeply") from None
            except Exception as error:  # noqa: BLE001 - it raises bare ones, of rules that are not there
                raise GrammarError(_first_line(str(error))) from None
    lark = f"{lark}\n{_OPTIONS}\n"
    if not constraint.after:
        return LLMatcher.grammar_from_lark(lark)
    before = _BEFORE.format(after=re.escape(constraint.after).replace("/", r"\/"))
    parts = [{"lark_grammar": f"{before}{_OPTIONS}\n"}, {"name": "rest", "lark_grammar": lark}]
    return json.dumps({"grammars": parts})


def words(constraint: Constraint, error: str, compiles: Callable[[Constraint], str]) -> str:
    """llguidance's error without the text that it is about. `compiles` gives another constraint's error."""
    if error.startswith("NoExtension"):
        error = "no text fits it"
    place = _PLACE.match(error)
    text = _PLACE.sub("", error)
    match constraint.kind:
        case "json":
            said = _reason(text)
            where = _at_fault(json.loads(constraint.text), error, compiles)
            return f"{said} (at {where})"
        case "regex":
            return _reason(_REGEX_ERROR.sub("", text).partition("; ")[0])
        case _:
            said = _first_line(text)
            return f"line {place[1]}, column {place[2]}: {said}" if place else said


def _reason(error: str) -> str:
    """What is wrong, of an error that also quotes what it is about."""
    text = _PLACE.sub("", error).removeprefix(_JSON_ERROR)
    _, quoted, why = text.partition("\nerror: ")  # of a regular expression
    if not quoted:
        return _first_line(text)
    return f"{'a pattern cannot be read: ' if _JSON_ERROR in error else ''}{_first_line(why)}"


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _at_fault(schema: dict[str, Any], error: str, compiles: Callable[[Constraint], str]) -> str:
    """JSON pointer of the innermost subschema that gives the same error by itself."""
    shared = {name: schema[name] for name in _SHARED if name in schema}
    shared["x-guidance"] = {"lenient": schema.get("x-guidance", {}).get("lenient", False)}
    where, looks, said = "#", 0, _reason(error)

    def fails(inner: dict[str, Any]) -> bool:
        nonlocal looks
        looks += 1
        return _reason(compiles(Constraint("json", json.dumps(shared | inner)))) == said

    while looks < MAX_LOOKS:
        suspects = list(_inner(schema, top=where == "#"))
        while len(suspects) > 1:  # halves, since there may be thousands
            first, second = suspects[: len(suspects) // 2], suspects[len(suspects) // 2 :]
            suspects = first if fails(_all([inner for _, inner in first])) else second
        if not suspects or not fails(suspects[0][1]):
            break
        path, schema = suspects[0]
        where = f"{where}/{path}"
    return where


def _all(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    """A schema that compiles only if they all do."""
    properties = {str(number): schema for number, schema in enumerate(schemas)}
    return {"type": "object", "properties": properties, "required": list(properties)}


def _inner(schema: dict[str, Any], top: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in (*_SHARED, *_MAPS) if top else _MAPS:
        if isinstance(found := schema.get(name), dict):
            yield from (
                (f"{name}/{key.replace('~', '~0').replace('/', '~1')}", inner)
                for key, inner in found.items()
                if isinstance(inner, dict)
            )
    for name in _LISTS:
        if isinstance(found := schema.get(name), list):
            yield from ((f"{name}/{n}", inner) for n, inner in enumerate(found) if isinstance(inner, dict))
    for name in _SINGLE:
        if isinstance(found := schema.get(name), dict):
            yield name, found
