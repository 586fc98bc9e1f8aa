"""Keeps control tokens that stand in a user's text from being read as control tokens.

A chat template writes its own control tokens and the users' text into one string. So that the two can be
told apart afterwards, a mark is put into every control token of the users' text before rendering (and after a
tail that could become one with what follows). Text without control tokens, nearly all of it, stays as it is,
and templates may trim, split and compare it as ever. The mark is a lone surrogate, which no valid text holds.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

MARK = "\udcff"


class Guard:
    """The control tokens of one tokenizer. One of a single character could not be broken and is left out."""

    def __init__(self, controls: Iterable[str]) -> None:
        self._controls = sorted({text for text in controls if len(text) > 1}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self._controls)) or r"(?!)")
        self._heads = {text[:length] for text in self._controls for length in range(1, len(text))}
        self._longest = max(map(len, self._heads), default=0)

    def shield(self, value: Any) -> Any:
        """A copy of JSON-like data with the control tokens in all its texts broken by the mark."""
        match value:
            case str():
                return self._shield(value)
            case dict():
                return {self.shield(key): self.shield(item) for key, item in value.items()}
            case list() | tuple():
                return [self.shield(item) for item in value]
        return value

    def _shield(self, text: str) -> str:
        broken = self._pattern.sub(_break, text)
        while broken != text:  # two that overlap: the second is whole until the first is broken
            text, broken = broken, self._pattern.sub(_break, broken)
        for length in range(min(self._longest, len(text)), 0, -1):
            if text[-length:] in self._heads:
                return text + MARK
        return text

    def split(self, rendered: str) -> Iterator[tuple[str, bool]]:
        """The rendered text in pieces without marks; each with whether it is a control token that counts."""
        at = 0
        for match in self._pattern.finditer(rendered):
            if plain := bare(rendered[at : match.start()]):
                yield plain, False
            yield match[0], True
            at = match.end()
        if plain := bare(rendered[at:]):
            yield plain, False


def bare(rendered: str) -> str:
    """The text as people should see it, without marks."""
    return rendered.replace(MARK, "")


def _break(match: re.Match[str]) -> str:
    return match[0][0] + MARK + match[0][1:]
