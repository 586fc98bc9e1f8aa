"""How log-probabilities are told: in OpenAI's two forms, and as open-source servers tell a prompt's. Pure."""

from collections.abc import Sequence
from typing import Any, Protocol

from pillion.contracts.entries import TokenLogprob
from pillion.gateway.output import Detokenizer, Shown

Json = dict[str, Any]
LEAST_LOGPROB = -9999.0  # stands for minus infinity, which JSON does not have
_UNKNOWN = TokenLogprob(LEAST_LOGPROB, 0)


class Pieces(Protocol):
    """What is needed of `pillion.gateway.tokenizer.Tokenizer`."""

    def piece(self, token: int, /) -> bytes: ...

    def detokenizer(self, *, skip_special: bool) -> Detokenizer: ...


class Teller:
    """`alternatives`: so many of the likeliest tokens are told beside each."""

    def __init__(self, pieces: Pieces, as_ids: bool, alternatives: int | None) -> None:
        """`as_ids`: tokens are named by their ids."""
        self._pieces = pieces
        self._as_ids = as_ids
        self._alternatives = alternatives

    def name(self, token: int) -> str:
        """Its text; for bytes that are no whole characters `bytes:\\xNN...`, which tells them apart."""
        if self._as_ids:
            return f"token_id:{token}"
        piece = self._pieces.piece(token)
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)

    # --- chats

    def content(self, shown: Sequence[Shown]) -> Json:
        return {"content": [self._entry(entry) for entry in shown], "refusal": None}

    def _entry(self, shown: Shown) -> Json:
        logprob = shown.logprob or _UNKNOWN
        top = [self._named(token, value) for token, value in logprob.top[: self._alternatives]]
        return self._named(shown.token, logprob.logprob) | {"top_logprobs": top}

    def _named(self, token: int, value: float) -> Json:
        return {
            "token": self.name(token),
            "logprob": _told(value),
            "bytes": list(self._pieces.piece(token)),
        }

    # --- completions

    def columns(self, echoed: Sequence[Shown], shown: Sequence[Shown], begin: int) -> Json:
        """Of an echoed prompt's tokens, then of the answer's, whose text begins at `begin`."""
        known = [Shown(entry.token, begin + entry.offset, entry.logprob or _UNKNOWN) for entry in shown]
        entries = [*echoed, *known]
        return {
            "tokens": [self.name(entry.token) for entry in entries],
            "token_logprobs": [entry.logprob and _told(entry.logprob.logprob) for entry in entries],
            "top_logprobs": [entry.logprob and self._top(entry.token, entry.logprob) for entry in entries],
            "text_offset": [entry.offset for entry in entries],
        }

    def echoed(self, tokens: Sequence[int], text: str, logprobs: Sequence[TokenLogprob]) -> list[Shown]:
        """The prompt's tokens with their places in its text; `logprobs` are of all but the first."""
        places = self._places(tokens, text)
        return [Shown(*each) for each in zip(tokens, places, (None, *logprobs), strict=True)]

    def _places(self, tokens: Sequence[int], text: str) -> list[int]:
        """Characters of the text that are whole before each token. Control tokens are part of it or not."""
        places: list[int] = []
        for skips in (False, True):
            detokenizer, length, places = self._pieces.detokenizer(skip_special=skips), 0, []
            for token in tokens:
                places.append(min(length, len(text)))
                length += len(detokenizer.push((token,)))
            if length + len(detokenizer.flush()) == len(text):
                break
        return places

    def _top(self, token: int, logprob: TokenLogprob) -> dict[str, float]:
        """The likeliest by name, and the token itself where it is not among them."""
        top: dict[str, float] = {}
        for other, value in (*logprob.top[: self._alternatives], (token, logprob.logprob)):
            top.setdefault(self.name(other), _told(value))
        return top

    # --- prompts

    def prompt(
        self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob], alternatives: int
    ) -> list[Json | None]:
        """By id, each token of the prompt and so many of the likeliest; None for the first."""
        listed: list[Json | None] = [None]
        for token, logprob in zip(tokens[1:], logprobs, strict=True):
            entry = {str(token): self._ranked(token, logprob.logprob, logprob.rank)}
            for rank, (other, value) in enumerate(logprob.top[:alternatives], 1):
                entry.setdefault(str(other), self._ranked(other, value, rank))
            listed.append(entry)
        return listed

    def _ranked(self, token: int, value: float, rank: int) -> Json:
        return {"logprob": _told(value), "rank": rank, "decoded_token": self.name(token)}


def _told(value: float) -> float:
    return max(value, LEAST_LOGPROB)
