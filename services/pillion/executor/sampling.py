"""Draws the next token of each sequence. What a row gives depends on its own logits and sequence alone.

A draw is a function of (logits, tokens so far, sampling, choice, output position): the same in every batch,
after every preemption and restart. The logits of a row are changed in this order: penalties, bias, the ban on
ending before `min_tokens`, temperature, top-k, top-p, min-p. Log-probabilities are of the unchanged logits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from pillion.contracts import executor_pb2
from pillion.contracts.entries import Sampling, TokenLogprob
from pillion.executor import filters, penalties
from pillion.executor.random import uniform

GREEDY_BELOW = 1e-5  # temperatures below it pick the likeliest token


@dataclass(frozen=True, slots=True)
class Draws:
    """One element a row, in the order asked for.

    A row in `errors` (row to message) has no token; its place in `tokens` holds -1. `logprobs` is None for
    sequences that did not ask.
    """

    tokens: list[int]
    logprobs: list[TokenLogprob | None]
    errors: dict[int, str] = field(default_factory=dict)


class _State:
    """What a sequence's slot knows."""

    __slots__ = ("banned", "bias_ids", "bias_values", "changes", "choice", "greedy", "history", "sampling")

    def __init__(
        self,
        sampling: Sampling,
        choice: int,
        tokens: NDArray[np.int32],
        prompt_length: int,
        end_tokens: Sequence[int],
    ) -> None:
        self.sampling = sampling
        self.choice = choice
        self.greedy = sampling.temperature < GREEDY_BELOW
        self.history = penalties.History(tokens, prompt_length) if penalties.wanted(sampling) else None
        self.bias_ids = np.fromiter(sampling.logit_bias.keys(), np.intp, len(sampling.logit_bias))
        self.bias_values = np.fromiter(sampling.logit_bias.values(), np.float32, len(sampling.logit_bias))
        self.banned = np.array(sorted({*end_tokens, *sampling.stop_token_ids}), np.intp)
        self.changes = self.history is not None or self.bias_ids.size > 0

    def plain(self, position: int) -> bool:
        """Whether the likeliest token of the unchanged row is all that is wanted."""
        return (
            self.greedy
            and not self.changes
            and self.sampling.logprobs is None
            and position >= self.sampling.min_tokens
        )

    def draw(self, raw: NDArray[np.float32], position: int) -> int:
        """`raw` is float32 [V] and is left as it is."""
        sampling = self.sampling
        row = raw
        held = position < sampling.min_tokens
        if self.changes or held:
            row = raw.copy()
            if self.history is not None:
                self.history.penalize(row, sampling)
            row[self.bias_ids] += self.bias_values
            if held:
                row[self.banned] = -np.inf
        if self.greedy:
            return int(row.argmax())  # the lowest id of equal ones
        ids, weights = filters.candidates(
            row, sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p
        )
        return filters.draw(ids, weights, uniform(sampling.seed, self.choice, position))


class Sampler:
    """The sampling state of all slots; used by the compute thread alone."""

    def __init__(self, vocab_size: int, end_tokens: Sequence[int]) -> None:
        self._vocab_size = vocab_size
        self._end_tokens = tuple(token for token in end_tokens if token < vocab_size)
        self._states: dict[int, _State] = {}

    def add(
        self,
        slot: int,
        sampling: Sampling,
        choice: int,
        tokens: Sequence[int] | NDArray[np.int32],
        prompt_length: int,
    ) -> None:
        """Takes `slot` for a sequence; its state is rebuilt from `tokens`: prompt, then output so far.

        Raises ValueError for parameters that cannot be, and for what is outside the vocabulary.
        """
        msgspec.convert(msgspec.to_builtins(sampling, str_keys=False), Sampling)  # a ValidationError is one
        for name, ids in (
            ("logit_bias", sampling.logit_bias),
            ("stop_token_ids", sampling.stop_token_ids),
            ("the sequence", (int(np.min(tokens, initial=0)), int(np.max(tokens, initial=0)))),
        ):
            for token in ids:
                if not 0 <= token < self._vocab_size:
                    raise ValueError(
                        f"{name} names token {token}; the vocabulary ends at {self._vocab_size - 1}"
                    )
        self._states[slot] = _State(
            sampling, choice, np.asarray(tokens, np.int32), prompt_length, self._end_tokens
        )

    def remove(self, slot: int) -> None:
        """Forgets the slot's sequence; a slot that holds none is left so."""
        self._states.pop(slot, None)

    def clear(self) -> None:
        self._states.clear()

    def note(self, slot: int, token: int) -> None:
        """Tells that `token` became part of the slot's sequence."""
        history = self._states[slot].history
        if history is not None:
            history.note(token)

    def sample(self, logits: torch.Tensor, slots: Sequence[int], positions: Sequence[int]) -> Draws:
        """Draws one token a row of `logits`, float32 [R, V], R = len(slots); the state is not changed.

        `positions` are output positions: how many tokens each sequence has generated before this one. A row
        without a finite largest logit is an error of that row alone.
        """
        states = [self._states[slot] for slot in slots]
        best = _argmax(logits)
        tokens: list[int] = best.tolist()
        logprobs: list[TokenLogprob | None] = [None] * len(states)
        peaks = logits[torch.arange(len(states), device=logits.device), best].tolist()
        errors = {
            row: f"the largest logit is {peak}; the model's weights or dtype do not suit this input"
            for row, peak in enumerate(peaks)
            if not np.isfinite(peak)
        }
        special = [
            row for row, state in enumerate(states) if row not in errors and not state.plain(positions[row])
        ]
        if special:
            host = logits.numpy(force=True)
            for row in special:
                state = states[row]
                token = tokens[row] = state.draw(host[row], positions[row])
                if state.sampling.logprobs is not None:
                    logprobs[row] = logprob(host[row], token, state.sampling.logprobs)
        for row in errors:
            tokens[row] = -1
        return Draws(tokens, logprobs, errors)


def logprob(row: NDArray[np.float32], token: int, k: int) -> TokenLogprob:
    """Natural logarithm of `token`'s probability under the logits `row` [V], its rank, and the `k` likeliest.

    Equal tokens rank by id, so that the token of rank r is the r-th of the likeliest.
    """
    peak = float(row.max())
    norm = peak + float(np.log(np.exp(row.astype(np.float64) - peak).sum()))
    own = row[token]
    rank = 1 + int(np.count_nonzero(row > own)) + int(np.count_nonzero(row[:token] == own))
    top: tuple[tuple[int, float], ...] = ()
    if k > 0:
        ids = filters.likeliest(row, k)
        ids = ids[np.argsort(-row[ids], kind="stable")]
        top = tuple((int(i), float(row[i]) - norm) for i in ids)
    return TokenLogprob(float(own) - norm, rank, top)


def from_wire(message: executor_pb2.Sampling) -> Sampling:
    """A plan's sampling parameters. Where 0 is no valid value, it is read as absent: neutral."""
    return Sampling(
        seed=message.seed,
        temperature=message.temperature,
        top_p=message.top_p or 1.0,
        top_k=message.top_k,
        min_p=message.min_p,
        frequency_penalty=message.frequency_penalty,
        presence_penalty=message.presence_penalty,
        repetition_penalty=message.repetition_penalty or 1.0,
        logit_bias=dict(message.logit_bias),
        min_tokens=message.min_tokens,
        ignore_eos=message.ignore_eos,
        stop_token_ids=tuple(message.stop_token_ids),
        logprobs=message.logprobs if message.HasField("logprobs") else None,
    )


def _argmax(logits: torch.Tensor) -> torch.Tensor:
    """Per row the lowest id of the largest logit, int64 [R]; a NaN counts as the largest."""
    if logits.device.type == "cpu":
        return torch.from_numpy(logits.numpy().argmax(axis=1))  # a third of the time of torch's own
    return logits.argmax(dim=1)
