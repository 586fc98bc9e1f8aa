"""Log-probabilities of prompt tokens: the rows that tell of them go through the head, a few at a time.

Row p of a prompt tells how likely its token p + 1 was. The numbers are those that the sampler gives for a
token that it drew, of the same logits: bit-equal however the prompt was cut into chunks.
"""

from collections.abc import Sequence
from math import isfinite
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pillion.contracts.entries import TokenLogprob
from pillion.contracts.packed import pack
from pillion.executor.batch import Row
from pillion.executor.sampling import logprob, unsound
from pillion.executor.slots import Slots
from pillion.kernels.rows import RowCounts

PIECE = 64  # rows at once: so many rows of logits, float32 [PIECE, V], are in memory

_Place = tuple[int, int, int]  # the row of the step, its slot, and the position of the token that it tells of


class Model(Protocol):
    """What is needed of `pillion.executor.models.llama.Llama`."""

    def logits(self, hidden: Tensor, /) -> Tensor: ...


class Scorer:
    """Used by the compute thread alone; keeps nothing."""

    def __init__(self, model: Model, counts: RowCounts) -> None:
        """`counts`: of rows that may go through its head together."""
        self._model = model
        self._counts = counts
        self._piece = min(PIECE, counts.counts[-1])

    def score(self, hidden: Tensor, rows: Sequence[Row], slots: Slots) -> dict[int, bytes | str]:
        """By slot what its chunk tells of the prompt, packed; a text says why it cannot.

        `hidden` [T, H] are the states of the step that these rows are.
        """
        told: dict[int, list[TokenLogprob]] = {row.slot: [] for row in rows if row.scored}
        failed: dict[int, str] = {}
        places = _places(rows) if told else []
        for first in range(0, len(places), self._piece):
            piece = places[first : first + self._piece]
            for logits, (_, slot, position) in zip(self._judge(hidden, piece), piece, strict=True):
                largest = float(logits.max())
                if isfinite(largest):
                    alternatives = slots[slot].scores or 0
                    told[slot].append(logprob(logits, int(slots.tokens[slot, position]), alternatives))
                else:
                    failed[slot] = unsound(largest)
        return {slot: failed.get(slot) or pack(each, slots[slot].scores or 0) for slot, each in told.items()}

    def _judge(self, hidden: Tensor, piece: Sequence[_Place]) -> NDArray[np.float32]:
        """Logits [R, V] of so many places, on the host."""
        chosen = hidden.new_zeros(self._counts.up(len(piece)), hidden.shape[1])
        chosen[: len(piece)] = hidden[torch.tensor([at for at, *_ in piece], device=hidden.device)]
        logits: NDArray[np.float32] = self._model.logits(chosen)[: len(piece)].numpy(force=True)
        return logits


def _places(rows: Sequence[Row]) -> list[_Place]:
    places, at = [], 0
    for row in rows:
        places += [(at + index, row.slot, row.start + index + 1) for index in range(row.scored)]
        at += row.count
    return places
