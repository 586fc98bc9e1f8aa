"""Checks of single values: each takes (where it stands, value) and gives the value to use or raises a 400."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pillion.gateway.protocol.errors import ApiError, bad

Take = Callable[[str, Any], Any]


@dataclass(frozen=True, slots=True)
class Check:
    """`schema` says in JSON Schema what passes, as far as that language can."""

    schema: Mapping[str, Any]
    take: Take

    def __call__(self, name: str, value: Any) -> Any:
        """Raises ApiError (400)."""
        return self.take(name, value)


def passes(schema: Mapping[str, Any]) -> Callable[[Take], Check]:
    """Makes a function a check."""
    return lambda take: Check(schema, take)


MAX_DEPTH = 100  # of tools, of calls' arguments, and of a template's variables
INT32 = (1 << 31) - 1
INT64 = (1 << 63) - 1


def _wrong(name: str, value: Any, wanted: str) -> ApiError:
    return bad(name, f"{name} must be {wanted}, not {_kind(value)}.", "invalid_type")


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"


@passes({"type": "boolean"})
def boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, value, "a boolean")
    return value


def integer(low: int, high: int) -> Check:
    """Between `low` and `high`, both included. A boolean is no integer."""

    @passes({"type": "integer", "minimum": low, "maximum": high})
    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong(name, value, "an integer")
        if not low <= value <= high:
            limit = f"at least {low}" if value < low else f"at most {high}"
            raise bad(name, f"{name} must be {limit}.", "out_of_range")
        return value

    return check


def number(low: float, high: float, *, above: bool = False) -> Check:
    """A finite number between `low` (excluded where `above`) and `high`."""

    @passes({"type": "number", "exclusiveMinimum" if above else "minimum": low, "maximum": high})
    def check(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _wrong(name, value, "a number")
        # Compared before it is converted: an integer may be too large for a float.
        if (isinstance(value, float) and not math.isfinite(value)) or not (
            low < value <= high if above else low <= value <= high
        ):
            lower = f"above {low:g}" if above else f"at least {low:g}"
            raise bad(name, f"{name} must be a finite number, {lower} and at most {high:g}.", "out_of_range")
        return float(value)

    return check


def text(longest: int, *, empty: bool = False) -> Check:
    """A string of at most `longest` characters."""

    @passes({"type": "string", "minLength": int(not empty), "maxLength": longest})
    def check(name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise _wrong(name, value, "a string")
        if not value and not empty:
            raise bad(name, f"{name} must not be empty.", "empty_string")
        if len(value) > longest:
            raise bad(name, f"{name} must have at most {longest} characters.", "string_too_long")
        return value

    return check


def listed(item: Check, most: int) -> Check:
    """An array of at most `most` items, as a tuple."""

    @passes({"type": "array", "items": item.schema, "maxItems": most})
    def check(name: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _wrong(name, value, "an array")
        if len(value) > most:
            raise bad(name, f"{name} must have at most {most} items.", "too_many_items")
        return tuple(item(f"{name}[{index}]", entry) for index, entry in enumerate(value))

    return check


def integers(low: int, high: int, most: int) -> Check:
    """What `listed(integer(low, high), most)` takes, for arrays of millions: all else waits meanwhile."""
    item = integer(low, high)
    few = listed(item, most)

    @passes(few.schema)
    def check(name: str, value: Any) -> tuple[int, ...]:
        if not isinstance(value, list) or len(value) > most:
            few(name, value)
        if value and (set(map(type, value)) != {int} or min(value) < low or max(value) > high):
            at, wrong = next(
                (at, one) for at, one in enumerate(value) if type(one) is not int or not low <= one <= high
            )
            item(f"{name}[{at}]", wrong)
        return tuple(value)

    return check


def one_or_listed(item: Check, most: int) -> Check:
    """One item or an array of them, as a tuple."""
    several = listed(item, most)

    @passes({"anyOf": [item.schema, several.schema]})
    def check(name: str, value: Any) -> tuple[Any, ...]:
        if isinstance(value, list):
            result: tuple[Any, ...] = several(name, value)
            return result
        return (item(name, value),)

    return check


@passes({"type": "object"})
def mapping(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(name, value, "an object")
    return value


def shallow(name: str, value: Any) -> None:
    """Raises ApiError (400) for what is nested deeper than anybody needs, and than writing it again takes."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for inner in level
            for item in (inner.values() if isinstance(inner, dict) else inner)
            if isinstance(item, dict | list)
        ]
        if not level:
            return
    raise bad(name, f"{name} is nested deeper than {MAX_DEPTH} levels.", "invalid_value")


def mapping_without(reserved: Collection[str], why: str) -> Check:
    """An object with none of the `reserved` keys, and not too deep."""

    @passes({"type": "object", "propertyNames": {"not": {"enum": list(reserved)}}})
    def check(name: str, value: Any) -> dict[str, Any]:
        entries: dict[str, Any] = mapping(name, value)
        for key in reserved:
            if key in entries:
                raise bad(f"{name}.{key}", f"{name}.{key} is refused: {why}.", "unsupported_parameter")
        shallow(name, entries)
        return entries

    return check


def bias(most: int) -> Check:
    """Token ids (JSON keys are strings) to -100..100. Whether the ids exist is the model's to say."""
    amount = number(-100.0, 100.0)
    ids = {"pattern": "^[0-9]{1,10}$"}

    @passes({
        "type": "object", "propertyNames": ids, "additionalProperties": amount.schema, "maxProperties": most
    })  # fmt: skip
    def check(name: str, value: Any) -> dict[int, float]:
        entries = mapping(name, value)
        if len(entries) > most:
            raise bad(name, f"{name} must have at most {most} entries.", "too_many_items")
        result: dict[int, float] = {}
        for key, entry in entries.items():
            if not (key.isascii() and key.isdigit()) or len(key) > 10:
                raise bad(name, f"{name}: the keys must be token ids.", "invalid_value")
            result[int(key)] = amount(f"{name}.{key}", entry)
        return result

    return check


def one_of(options: Collection[str]) -> Check:
    @passes({"type": "string", "enum": list(options)})
    def check(name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in options:
            raise bad(name, f"{name} must be one of {', '.join(sorted(options))}.", "invalid_value")
        return value

    return check


def unchecked(schema: Mapping[str, Any]) -> Check:
    """For what is looked at later, whole."""
    return Check(schema, lambda name, value: value)
