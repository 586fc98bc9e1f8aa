"""Draws the next token of each sequence. What a row gives depends on its own logits and sequence alone.

A draw is a function of (logits, tokens so far, sampling, choice, output position): the same in every batch,
after every preemption and restart. The logits of a row are changed in this order: penalties, bias, what is
banned, the ban on ending before `min_tokens` or the constraint's mask, temperature, top-k, top-p, min-p.
Log-probabilities are of the unchanged logits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from pillion.contracts import executor_pb2
from pillion.contracts.entries import Constraint, Sampling, TokenLogprob
from pillion.executor import penalties
from pillion.executor.badwords import BadWords
from pillion.executor.random import uniforms
from pillion.grammar import Grammars, Masked
from pillion.kernels import filters
from pillion.kernels.interface import WISH, Backend

GREEDY_BELOW = 1e-5  # temperatures below it pick the likeliest token
_SEED = (1 << 64) - 1  # what counts of a seed


@dataclass(frozen=True, slots=True)
class Draws:
    """One element a row, in the order asked for.

    A row in `errors` or `impossible` (row to message) has no token; its place in `tokens` holds -1:
    what an impossible one's request asks for contradicts itself. `logprobs` is None for sequences that did
    not ask.
    """

    tokens: list[int]
    logprobs: list[TokenLogprob | None]
    errors: dict[int, str] = field(default_factory=dict)
    impossible: dict[int, str] = field(default_factory=dict)


class _State:
    """What a sequence's slot knows beside its wish."""

    __slots__ = (
        "_banned",
        "_bias_ids",
        "_bias_values",
        "_changes",
        "_ends",
        "_only",
        "_stops",
        "history",
        "sampling",
        "words",
    )

    def __init__(
        self, sampling: Sampling, tokens: NDArray[np.int32], prompt_length: int, end_tokens: Sequence[int]
    ) -> None:
        self.sampling = sampling
        self.history = penalties.History(tokens, prompt_length) if penalties.wanted(sampling) else None
        self._bias_ids = np.fromiter(sampling.logit_bias.keys(), np.intp, len(sampling.logit_bias))
        self._bias_values = np.fromiter(sampling.logit_bias.values(), np.float32, len(sampling.logit_bias))
        self._ends = np.array(sorted(end_tokens), np.intp)
        self._stops = np.array(sorted(sampling.stop_token_ids), np.intp)
        self._banned = np.union1d(self._ends, self._stops)
        self._only = np.array(sampling.allowed_token_ids, np.intp)
        self.words = (
            BadWords(sampling.bad_words, tokens[prompt_length:].tolist()) if sampling.bad_words else None
        )
        self._changes = (
            self.history is not None
            or self.words is not None
            or sampling.constraint is not None
            or self._bias_ids.size + self._only.size > 0
        )

    def changes(self, position: int) -> bool:
        """Whether the row is drawn from other logits than the model's."""
        return self._changes or position < self.sampling.min_tokens

    def change(self, row: NDArray[np.float32], position: int, masked: Masked | None) -> None:
        """Changes `row` [V] in place. `masked` is of a constrained sequence."""
        if self.history is not None:
            self.history.penalize(row, self.sampling)
        row[self._bias_ids] += self._bias_values
        if self._only.size:
            kept = row[self._only]
            row[:] = -np.inf
            row[self._only] = kept
        if self.words is not None:
            row[self.words.banned()] = -np.inf
        if masked is not None:
            row[~self._allowed(masked, row.size, position)] = -np.inf
        elif position < self.sampling.min_tokens:
            row[self._banned] = -np.inf

    def narrowed(self, position: int) -> str:
        """By what fewer tokens may be drawn at this position, for people."""
        sampling = self.sampling
        names = {
            "the constraint (response_format, structured_outputs, guided_..., tools)": sampling.constraint,
            "allowed_token_ids": sampling.allowed_token_ids,
            "bad_words": sampling.bad_words,
            "stop_token_ids": sampling.constraint and sampling.stop_token_ids,
            "min_tokens": position < sampling.min_tokens,
        }
        return ", ".join(name for name, narrows in names.items() if narrows)

    def _allowed(self, masked: Masked, size: int, position: int) -> NDArray[np.bool_]:
        """What fits the constraint, [size]. It ends only where it may, and not as long as it is not to end,
        unless nothing else is left."""
        bits = np.unpackbits(np.frombuffer(masked.bits, np.uint8), count=size, bitorder="little")
        allowed = bits.view(np.bool_)
        if masked.accepting:
            allowed[self._ends] = True
        allowed[self._stops] = masked.accepting
        early = (
            self._banned
            if position < self.sampling.min_tokens
            else self._ends
            if self.sampling.ignore_eos
            else None
        )
        if early is not None:
            kept = allowed[early]
            allowed[early] = False
            if not allowed.any():
                allowed[early] = kept
        return allowed


class Sampler:
    """The sampling state of all slots; used by the compute thread alone."""

    def __init__(
        self,
        backend: Backend,
        vocab_size: int,
        end_tokens: Sequence[int],
        max_num_seqs: int,
        grammars: Grammars | None = None,
    ) -> None:
        """Slots are below `max_num_seqs`. Without `grammars` no sequence can be constrained."""
        self._backend = backend
        self._grammars = grammars
        self._expected = False
        self._vocab_size = vocab_size
        self._end_tokens = tuple(token for token in end_tokens if token < vocab_size)
        self._states: dict[int, _State] = {}
        self._wishes = np.zeros(max_num_seqs, WISH)
        self._seeds = np.zeros((2, max_num_seqs), np.uint64)  # and choices

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
            ("allowed_token_ids", sampling.allowed_token_ids),
            ("bad_words", (token for word in sampling.bad_words for token in word)),
            ("the sequence", (int(np.min(tokens, initial=0)), int(np.max(tokens, initial=0)))),
        ):
            for token in ids:
                if not 0 <= token < self._vocab_size:
                    raise ValueError(
                        f"{name} names token {token}; the vocabulary ends at {self._vocab_size - 1}"
                    )
        if sampling.constraint is not None:
            if self._grammars is None:
                raise ValueError("constraints need the model's tokenizer")
            output = np.asarray(tokens, np.int32)[prompt_length:].tolist()
            self._grammars.open(slot, sampling.constraint, output)
        self._states[slot] = _State(sampling, np.asarray(tokens, np.int32), prompt_length, self._end_tokens)
        temperature = 0.0 if sampling.temperature < GREEDY_BELOW else sampling.temperature
        self._wishes[slot] = (temperature, sampling.top_p, sampling.min_p, 0.0, sampling.top_k)
        self._seeds[:, slot] = sampling.seed & _SEED, choice

    def remove(self, slot: int) -> None:
        """Forgets the slot's sequence; a slot that holds none is left so."""
        state = self._states.pop(slot, None)
        if state is not None and state.sampling.constraint is not None and self._grammars is not None:
            self._grammars.close((slot,))

    def clear(self) -> None:
        self._states.clear()
        if self._grammars is not None:
            self._grammars.clear()

    def note(self, slot: int, token: int) -> None:
        """Tells that `token` became part of the slot's sequence."""
        state = self._states[slot]
        if state.history is not None:
            state.history.note(token)
        if state.words is not None:
            state.words.note(token)
        if state.sampling.constraint is not None and self._grammars is not None:
            self._grammars.note(slot, token)

    def expect(self, slots: Sequence[int]) -> None:
        """Tells before the forward pass whose next token will be drawn: masks are made meanwhile."""
        if self._grammars is not None:
            constrained = {slot for slot in slots if self._states[slot].sampling.constraint is not None}
            self._grammars.ask(sorted(constrained))
            self._expected = True

    def sample(self, logits: torch.Tensor, slots: Sequence[int], positions: Sequence[int]) -> Draws:
        """Draws one token a row of `logits`, float32 [R, V], R = len(slots); the state is not changed.

        `positions` are output positions: how many tokens each sequence has generated before this one. A row
        without a finite largest logit, or without the mask of its constraint, is an error of that row alone.
        """
        states = [self._states[slot] for slot in slots]
        masks, unmasked = self._masks(slots, states)
        wishes = self._wishes[slots]
        if wishes["temperature"].any():
            seeds, choices = self._seeds[:, slots]
            wishes["uniform"] = uniforms(seeds, choices, np.array(positions, np.uint64))
        changed = [row for row, state in enumerate(states) if state.changes(positions[row])]
        first = wishes
        if changed:
            first = wishes.copy()
            first["temperature"][changed] = 0.0  # of these it tells whether they are sound
        tokens = self._backend.draw(logits, first)
        errors = {
            row: unsound(float(logits[row].max())) for row in np.flatnonzero(tokens < 0).tolist()
        } | unmasked
        impossible: dict[int, str] = {}
        if rows := [row for row in changed if row not in errors]:
            copies = logits[rows].numpy(force=True)
            for copy, row in zip(copies, rows, strict=True):
                states[row].change(copy, positions[row], masks.get(slots[row]))
            tokens[rows] = self._backend.draw(torch.from_numpy(copies), wishes[rows])
            impossible = {
                row: f"No token is left to draw after {positions[row]} tokens of the answer, by "
                f"{states[row].narrowed(positions[row])}. Ask for less of it."
                for row in rows
                if tokens[row] < 0
            }
        logprobs: list[TokenLogprob | None] = [None] * len(states)
        told = [
            (row, state.sampling.logprobs)
            for row, state in enumerate(states)
            if state.sampling.logprobs is not None and row not in errors and row not in impossible
        ]
        if told:
            host = logits.numpy(force=True)
            for row, alternatives in told:
                logprobs[row] = logprob(host[row], int(tokens[row]), alternatives)
        for row in unmasked:
            tokens[row] = -1
        return Draws(tokens.tolist(), logprobs, errors, impossible)

    def _masks(
        self, slots: Sequence[int], states: "Sequence[_State]"
    ) -> tuple[dict[int, Masked], dict[int, str]]:
        """The masks of those slots that are constrained, and by row why one has none."""
        rows = {row: slots[row] for row, state in enumerate(states) if state.sampling.constraint is not None}
        if not rows or self._grammars is None:
            return {}, {}
        if not self._expected:
            self.expect(slots)
        self._expected = False
        masks = self._grammars.answer()
        errors = {
            row: f"the constraint cannot be kept: {self._grammars.why(slot) or masks[slot].error}"
            for row, slot in rows.items()
            if slot not in masks or masks[slot].error
        }
        return masks, errors


def unsound(largest: float) -> str:
    """Why a row with this largest logit tells nothing."""
    return f"the largest logit is {largest}; the model's weights or dtype do not suit this input"


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
        constraint=constraint_from_wire(message.constraint) if message.HasField("constraint") else None,
        allowed_token_ids=tuple(message.allowed_token_ids),
        bad_words=tuple(tuple(word.tokens) for word in message.bad_words),
        prompt_logprobs=message.prompt_logprobs if message.HasField("prompt_logprobs") else None,
    )


def constraint_from_wire(message: executor_pb2.Constraint) -> Constraint:
    return Constraint(message.kind, message.text, message.after)  # type: ignore[arg-type]
