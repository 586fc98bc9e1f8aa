"""The output stage: from a request's record and its tokens so far to what its client sees. Pure.

Fed the same tokens from position 0, in items of whatever size, any gateway comes to the same deltas: each is
of one token, or of the choice's end.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from pillion.contracts.entries import TokenLogprob, Tokens
from pillion.contracts.packed import size
from pillion.gateway.protocol.errors import CONTRADICTION, ApiError
from pillion.gateway.protocol.request import Output
from pillion.gateway.reading import reader
from pillion.gateway.source import Part
from pillion.gateway.stops import Stops


class Detokenizer(Protocol):
    """What is needed of `pillion.gateway.detokenizer.Detokenizer`."""

    def push(self, tokens: Sequence[int], /) -> str: ...

    def flush(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Shown:
    """One token, for logprobs and token ids."""

    token: int
    offset: int  # characters of the choice's text that were whole before it
    logprob: TokenLogprob | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """What is new for a choice. `shown` may run ahead of or behind `parts`, but both are whole at the end."""

    choice: int
    parts: tuple[Part, ...]
    shown: tuple[Shown, ...] = ()
    first: bool = False
    prompt: bytes | None = None  # what is told of it, packed; with `first`, where it is asked for
    finish: str | None = None  # "stop", "length" or "tool_calls", on the last one
    stop_reason: str | int | None = None  # the stop string or stop id that ended it


class Gap(Exception):
    """An item does not follow what is known: the items between are to be fetched."""

    def __init__(self, choice: int, known: int) -> None:
        super().__init__(f"choice {choice} is known up to position {known}")
        self.choice = choice
        self.known = known


def singly(item: Tokens) -> Iterator[Tokens]:
    """The item as one for each token, and one for the choice's end."""
    if len(item.tokens) <= 1 and (item.finish is None or not item.tokens):
        yield item
        return
    last = len(item.tokens) - 1
    for index, token in enumerate(item.tokens):
        yield Tokens(
            item.request,
            item.choice,
            item.position + index,
            (token,),
            stop_token=item.stop_token if index == last else None,
            cached=item.cached,
            logprobs=item.logprobs[index : index + 1] if item.logprobs else None,
            prompt_logprobs=item.prompt_logprobs if index == 0 else None,
        )
    if item.finish is not None:
        at = item.position + len(item.tokens)
        yield Tokens(item.request, item.choice, at, (), item.finish, item.stop_token, error=item.error)


class Choice:
    """Folds one choice's items, each of one token or the end: see `singly`. Positions that it knows are
    dropped, so that items may come again.
    """

    def __init__(self, index: int, spec: Output, detokenizer: Detokenizer, prompt: int = 1) -> None:
        """`prompt`: how many tokens it has."""
        self.index = index
        self.count = 0  # tokens that count for the client: up to the one that completed a stop string
        self.known = 0  # tokens fed
        self.cached = 0  # prompt tokens from the prefix index
        self.finish: str | None = None
        self.thought = 0  # tokens of them that are reasoning
        self.stopped_here = False  # by a stop string, or behind the only call, which the engine does not see
        self._spec = spec
        self._keeps = spec.logprobs is not None or spec.token_ids
        self._detokenizer = detokenizer
        # A forced call ends where it is whole: its text is the grammar's, not the model's.
        forced = spec.calls is not None and spec.calls.certain
        self._stops = Stops(() if forced else spec.stop, spec.include_stop)
        self._reader = reader(spec)
        self._decoded = 0  # characters that the detokenizer gave
        self._released = 0  # characters that the client got
        self._first = True
        self._prompt: bytes | None = None
        self._told_of = prompt - 1  # tokens of the prompt
        self._failed: ApiError | None = None
        self._shown: list[Shown] = []  # entries that no delta has brought yet

    def feed(self, item: Tokens) -> Delta | None:
        """What the item brings, None for nothing. Raises Gap, and ApiError where the choice failed."""
        if self.finish is not None:
            return None
        if self._failed is not None:
            raise self._failed
        if item.position > self.known:
            raise Gap(self.index, self.known)
        if not self.known:
            self.cached = item.cached  # a later life of the request finds in the index what this one computed
            if self._spec.scored is not None and item.tokens:
                self._take_prompt(item.prompt_logprobs or b"", self._spec.scored)
        count, thinking = self.count, self._reader.thinking
        text = self._push(item)
        parts = self._reader.push(text)
        if thinking or self._reader.thinking:
            self.thought += self.count - count
        if self._reader.over:
            self.finish, self.stopped_here = "stop", True
        elif self.finish is None and item.finish is not None:
            rest = self._end(item)
            text += rest
            parts += self._reader.push(rest)
        if self.finish is not None:
            parts += self._reader.finish()
            if self.finish == "stop" and self._reader.calls and not self._reader.broken:
                self.finish = "tool_calls"
        return self._delta(text, parts, item)

    def _take_prompt(self, packed: bytes, alternatives: int) -> None:
        """Raises ApiError where a replica of another release did not tell of it: nothing is shown then."""
        if len(packed) != self._told_of * size(alternatives):
            self._failed = ApiError(
                500,
                "The replica did not bring the prompt's log probabilities.",
                type="server_error",
                code="generation_failed",
            )
            raise self._failed
        self._prompt = packed

    def _push(self, item: Tokens) -> str:
        if item.position < self.known or not item.tokens:
            return ""
        token = item.tokens[0]
        self.known += 1
        if self._spec.only_prompt:
            return ""
        self.count += 1
        if self._keeps:
            self._shown.append(Shown(token, self._decoded, item.logprobs[0] if item.logprobs else None))
        if item.stop_token is not None and not self._spec.include_stop:
            return ""  # what ended the choice is counted, but no part of its text
        text = self._detokenizer.push((token,))
        self._decoded += len(text)
        text = self._stops.push(text, self.count >= self._spec.min_tokens)
        if self._stops.matched is not None:
            self.finish, self.stopped_here = "stop", True
        return text

    def _end(self, item: Tokens) -> str:
        """The choice's last item: what was held back comes out."""
        if item.finish == "error":
            raise ApiError(
                500, item.error or "The generation failed.", type="server_error", code="generation_failed"
            )
        if item.finish == "impossible":
            raise ApiError(400, item.error or "The request contradicts itself.", code=CONTRADICTION)
        if item.finish == "cancelled":
            raise ApiError(
                503, item.error or "The request was cancelled.", type="server_error", code="cancelled"
            )
        self.finish = "length" if self._spec.only_prompt else item.finish
        text = self._stops.push(self._detokenizer.flush())
        if self._stops.matched is not None:
            self.finish = "stop"
        return text + self._stops.flush()

    def _delta(self, text: str, parts: tuple[Part, ...], item: Tokens) -> Delta | None:
        first = self._first and (self.known > 0 or self.finish is not None)
        self._released += len(text)
        # Held text may yet be cut off, and with it a token's place: that is certain only at the end.
        if self.finish is None and self._spec.stop:
            certain = [entry for entry in self._shown if entry.offset < self._released]
        else:
            certain = self._shown
        # A token whose character is not whole yet is shown as it comes, without text.
        if not (parts or certain or first or self.finish is not None):
            return None
        self._first = False
        shown = tuple(
            entry if entry.offset <= self._released else Shown(entry.token, self._released, entry.logprob)
            for entry in certain
        )
        self._shown = self._shown[len(certain) :]
        prompt, self._prompt = self._prompt, None
        return Delta(self.index, parts, shown, first, prompt, self.finish, self._reason(item))

    def _reason(self, item: Tokens) -> str | int | None:
        if self.finish is None or self._spec.only_prompt:
            return None
        if self._stops.matched is not None:
            return self._stops.matched
        return item.stop_token if item.stop_token in self._spec.stop_token_ids else None
