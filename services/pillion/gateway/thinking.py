"""Reasoning before an answer, as models mark it: `<think>...</think>`; and how much is asked for. Pure."""

import re
from typing import Any

from pillion.gateway.protocol.errors import bad
from pillion.gateway.source import Source, Steps

OPEN, CLOSE = "<think>", "</think>"
MARKS = (OPEN, CLOSE)
_LEVELS = re.compile(r"\breasoning_effort\b")
_SWITCH = re.compile(r"\benable_thinking\b")


def variables(effort: str, template: str, *, thinks: bool) -> dict[str, Any]:
    """What tells the chat template of a `reasoning_effort`. Raises ApiError where nothing does."""
    told: dict[str, Any] = {}
    if _LEVELS.search(template):
        told["reasoning_effort"] = effort
    if _SWITCH.search(template):
        told["enable_thinking"] = effort != "none"
    if not told and (thinks or effort != "none"):
        raise bad(
            "reasoning_effort",
            "reasoning_effort is refused: the model's chat template has no such setting.",
            "unsupported_parameter",
        )
    return told


def read(source: Source, opened: bool) -> Steps[None]:
    """Tells the reasoning, if the text begins with it. Blanks inside of its marks and behind it are left out.

    `opened`: the prompt ends with the opening mark; a model may write it once more.
    """
    source.thinking = opened
    yield from source.space()
    if not (yield from source.one_of(OPEN)) and not opened:
        source.again()
        return
    source.thinking = True
    yield from source.space()
    source.leave_out()
    if (yield from source.until(CLOSE, "reasoning")):
        source.thinking = False
        yield from source.space()
        source.leave_out()
