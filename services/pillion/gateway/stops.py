"""Finds stop strings in a text that comes in pieces, and holds back what may become one."""

from collections.abc import Sequence


class Stops:
    """Of one choice. What it does depends on the text only, not on how it was cut into pieces.

    The match that is complete first counts; of several that end at the same character the longest. So of `ab`
    and `abc` only the first is ever seen.
    """

    __slots__ = ("_firsts", "_held", "_include", "_stops", "matched")

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        """`include`: the text keeps the string that ended it."""
        self._stops = tuple(stops)
        self._firsts = {stop[0] for stop in stops}
        self._include = include
        self._held = ""  # the longest tail of the text that begins a stop string
        self.matched: str | None = None

    def push(self, text: str, armed: bool = True) -> str:
        """The text that is certain. After a match `matched` is set and no text follows.

        While not `armed` no string may end in `text`, but one may begin there.
        """
        if not self._stops or self.matched is not None:
            return "" if self.matched is not None else text
        known = len(self._held)
        text = self._held + text
        if armed:
            end, stop = self._first(text, known)
            if stop:
                self.matched, self._held = stop, ""
                return text[:end] if self._include else text[: end - len(stop)]
        self._held = self._tail(text)
        return text[: len(text) - len(self._held)]

    def flush(self) -> str:
        """What was held back, at the end of the text."""
        held, self._held = self._held, ""
        return held

    def _first(self, text: str, known: int) -> tuple[int, str]:
        """Where the first match ends that ends behind `known`, and its string; "" where there is none."""
        best, found = len(text) + 1, ""
        for stop in self._stops:
            at = text.find(stop, max(0, known - len(stop) + 1))
            if at >= 0 and (at + len(stop), -len(stop)) < (best, -len(found)):
                best, found = at + len(stop), stop
        return best, found

    def _tail(self, text: str) -> str:
        longest = max(map(len, self._stops)) - 1
        for at in range(max(0, len(text) - longest), len(text)):
            if text[at] in self._firsts and self._begins(tail := text[at:]):
                return tail
        return ""

    def _begins(self, tail: str) -> bool:
        """Whether a stop string begins so, and goes on."""
        return any(len(tail) < len(stop) and stop.startswith(tail) for stop in self._stops)
