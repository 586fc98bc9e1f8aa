"""Token sequences that a sequence must not generate."""

from collections import deque
from collections.abc import Iterable, Sequence


class BadWords:
    """Each word is banned at its last token, where the ones before it have just come."""

    __slots__ = ("_tail", "_words")

    def __init__(self, words: Sequence[tuple[int, ...]], output: Iterable[int]) -> None:
        """`output` was generated so far; what stands in the prompt begins no word."""
        self._words = words
        self._tail = deque(output, max(map(len, words)) - 1)

    def note(self, token: int) -> None:
        self._tail.append(token)

    def banned(self) -> list[int]:
        """Tokens that would end a word now."""
        tail = tuple(self._tail)
        return [word[-1] for word in self._words if len(word) == 1 or tail[-len(word) + 1 :] == word[:-1]]
