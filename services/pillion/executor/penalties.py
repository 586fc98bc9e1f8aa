"""What a sequence's own tokens and its request do to the logits before a token is drawn."""

import numpy as np
from numpy.typing import NDArray

from pillion.contracts.entries import Sampling

_LARGEST = np.float32(1e30)


class History:
    """How often each distinct token was generated; tokens of the prompt alone count 0. Grows by doubling."""

    __slots__ = ("_counts", "_ids", "_index", "_size")

    def __init__(self, tokens: NDArray[np.int32], prompt_length: int) -> None:
        ids, inverse = np.unique(tokens, return_inverse=True)
        self._size = ids.size
        self._ids = ids.astype(np.intp)
        self._counts = np.bincount(inverse[prompt_length:], minlength=ids.size).astype(np.float32)
        self._index = {int(token): place for place, token in enumerate(ids)}

    def note(self, token: int) -> None:
        place = self._index.get(token)
        if place is None:
            if self._size == self._ids.size:
                room = max(64, self._size)
                self._ids = np.concatenate((self._ids, np.zeros(room, np.intp)))
                self._counts = np.concatenate((self._counts, np.zeros(room, np.float32)))
            place = self._index[token] = self._size
            self._ids[place] = token
            self._size += 1
        self._counts[place] += 1

    def penalize(self, row: NDArray[np.float32], sampling: Sampling) -> None:
        """Changes `row` [V] in place.

        Every token of prompt and output first loses by the repetition penalty (Keskar et al. 2019: positive
        logits are divided, negative ones multiplied); then generated tokens lose the frequency penalty times
        their count, and the presence penalty once.
        """
        ids, counts = self._ids[: self._size], self._counts[: self._size]
        logits = row[ids]
        if sampling.repetition_penalty != 1.0:
            penalty = np.float32(sampling.repetition_penalty)
            with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
                logits = np.where(logits > 0, logits / penalty, logits * penalty)
        logits -= np.float32(sampling.frequency_penalty) * counts
        logits -= np.float32(sampling.presence_penalty) * (counts > 0)
        # A tiny repetition penalty divides beyond what float32 holds; differences must stay numbers.
        row[ids] = np.clip(logits, -_LARGEST, _LARGEST)


def wanted(sampling: Sampling) -> bool:
    """Whether a sequence needs its history at all."""
    return (
        sampling.repetition_penalty != 1.0
        or sampling.frequency_penalty != 0.0
        or sampling.presence_penalty != 0.0
    )
