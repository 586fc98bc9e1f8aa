"""Two answers to one request, token for token. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any


@dataclass(slots=True)
class Choice:
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish: str | None = None


@dataclass(slots=True)
class Answer:
    """What a client has of a request, by choice."""

    choices: dict[int, Choice] = field(default_factory=dict)
    usage: dict[str, Any] | None = None

    @property
    def tokens(self) -> int:
        return sum(len(choice.tokens) for choice in self.choices.values())


@dataclass(frozen=True, slots=True)
class Difference:
    """`lost` and `doubled`: tokens that are missing or too many; a wrong one counts as both."""

    lost: int
    doubled: int
    words: str


def compare(expected: Answer, got: Answer) -> Difference | None:
    """None where both are the same: tokens, text, reason of the end and the counts in the usage."""
    lost = doubled = 0
    words: list[str] = []
    for index in sorted(expected.choices.keys() | got.choices.keys()):
        want, have = (answer.choices.get(index, Choice()) for answer in (expected, got))
        if want == have:
            continue
        missing, extra = _edits(want.tokens, have.tokens)
        lost, doubled = lost + missing, doubled + extra
        words.append(f"choice {index}: {_say(want, have)}")
    counts = [
        {name: (answer.usage or {}).get(name) for name in ("prompt_tokens", "completion_tokens")}
        for answer in (expected, got)
    ]
    if counts[0] != counts[1]:
        words.append(f"usage {counts[1]} where {counts[0]} is right")
    return Difference(lost, doubled, "; ".join(words)) if words else None


def _edits(want: Sequence[int], have: Sequence[int]) -> tuple[int, int]:
    same = sum(
        block.size for block in SequenceMatcher(None, want, have, autojunk=False).get_matching_blocks()
    )
    return len(want) - same, len(have) - same


def _say(want: Choice, have: Choice) -> str:
    if want.tokens != have.tokens:
        pairs = zip(want.tokens, have.tokens, strict=False)
        at = next((at for at, (one, other) in enumerate(pairs) if one != other), None)
        at = min(len(want.tokens), len(have.tokens)) if at is None else at
        return (
            f"{len(have.tokens)} tokens where {len(want.tokens)} are right, other from token {at} on:"
            f" {have.tokens[at : at + 4]} for {want.tokens[at : at + 4]}"
        )
    if want.text != have.text:
        return f"the same tokens, but text of {len(have.text)} characters where {len(want.text)} are right"
    return f"it ended by {have.finish} where {want.finish} is right"
