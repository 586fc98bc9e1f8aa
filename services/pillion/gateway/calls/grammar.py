"""Grammars of texts that are tool calls and nothing else, in llguidance's variant of Lark. Pure."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Controls = Mapping[str, int]
"""The model's control tokens by their texts."""

# As templates write it. Blanks wherever JSON allows them would let a small model write nothing else.
_WRITTEN = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands round calls, and round the arguments of each. A piece may be a control token."""

    before: Callable[[str], tuple[str, ...]]  # a call's arguments, by its function's name
    after: tuple[str, ...] = ()
    between: tuple[str, ...] = ()  # calls
    begin: tuple[str, ...] = ()
    end: tuple[str, ...] = ()


def lark(
    frame: Frame,
    functions: Sequence[Mapping[str, Any]],
    controls: Controls,
    *,
    several: bool = True,
    content: str | None = None,
) -> str:
    """One call of the functions, or `several`, one at least; or else `content`, a schema in JSON."""

    def written(pieces: Iterable[str]) -> str:
        return " ".join(
            f"<[{controls[piece]}]>" if piece in controls else json.dumps(piece) for piece in pieces
        )

    more = f"({written(frame.between)} call)*" if several else ""
    rules = [
        f"start: calls{'' if content is None else ' | content'}",
        f"calls: {written(frame.begin)} call {more} {written(frame.end)}",
        "call: " + " | ".join(f"call{number}" for number in range(len(functions))),
    ]
    for number, function in enumerate(functions):
        before, after = written(frame.before(function["name"])), written(frame.after)
        rules.append(f"call{number}: {before} arguments{number} {after}")
        rules.append(f"arguments{number}: %json {arguments(function)}")
    if content is not None:
        rules.append(f"content: %json {content}")
    return "\n".join(rules)


def arguments(function: Mapping[str, Any]) -> str:
    """The schema, in JSON, of a function's arguments: an object, and none where none are described. What
    cannot be enforced is passed over, unless the function says `strict`.
    """
    parameters = function.get("parameters")
    schema = _NOTHING if parameters is None else parameters | {"type": "object"}
    return json.dumps(schema | {"x-guidance": _WRITTEN | {"lenient": not function.get("strict")}})
