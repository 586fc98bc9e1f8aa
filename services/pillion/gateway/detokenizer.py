"""Token ids to text, a few at a time, such that the parts joined are the whole."""

import codecs
from collections.abc import Callable, Iterable, Set

from pillion.modelfiles.pieces import EACH_BYTE

# One replacement character for each.
codecs.register_error(EACH_BYTE, lambda error: ("\ufffd" * (error.end - error.start), error.end))  # type: ignore[attr-defined]


class Detokenizer:
    """Decodes one choice's tokens. Its output depends on the tokens only, not on how they were grouped.

    A character whose bytes are spread over tokens comes with the last of them; `flush` shows what is left of
    a truncated one as U+FFFD.
    """

    __slots__ = ("_decoder", "_lead", "_piece", "_skipped", "_strip")

    def __init__(
        self,
        piece: Callable[[int], bytes],
        skipped: Set[int],
        errors: str,
        strip: Callable[[bytes], bytes] | None,
    ) -> None:
        """`skipped` tokens give no text; `strip` is applied to the first piece that is not skipped."""
        self._piece, self._skipped, self._strip = piece, skipped, strip
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors)
        self._lead = strip is not None

    def push(self, tokens: Iterable[int]) -> str:
        """The text that is certain after these tokens."""
        text = ""
        for token in tokens:
            if token in self._skipped:
                continue
            piece = self._piece(token)
            if self._lead and self._strip is not None:
                self._lead = False
                piece = self._strip(piece)
            text += self._decoder.decode(piece)
        return text

    def flush(self) -> str:
        """What is left at the end of the tokens; the detokenizer is then done."""
        return self._decoder.decode(b"", True)
