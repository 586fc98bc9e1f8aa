"""Layers that are cut over the ranks of one executor (arXiv 1909.08053, section 3)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pillion.kernels.four_bit import Weight, join
from pillion.kernels.interface import Backend, Linear


@dataclass(frozen=True, slots=True)
class Shard:
    """What a rank holds of the model: its share of the layers first_layer .. last_layer - 1."""

    tp_rank: int
    tp_size: int
    first_layer: int
    last_layer: int

    def part(self, size: int) -> slice:
        """This rank's share of `size` equal units. Raises ValueError where they do not divide."""
        if size % self.tp_size:
            raise ValueError(f"{size} does not divide by {self.tp_size} ranks")
        share = size // self.tp_size
        return slice(self.tp_rank * share, (self.tp_rank + 1) * share)


class Collective(Protocol):
    """What ranks of one TP group do together."""

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over the ranks."""
        ...

    def all_gather(self, x: Tensor) -> Tensor:
        """All ranks' parts side by side along the last axis."""
        ...


class Alone:
    """The collective of one rank."""

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        return x


class ColumnParallel:
    """Several linears of one input as one product; each rank computes its share of every one's outputs."""

    def __init__(
        self, backend: Backend, weights: Sequence[Weight], biases: Sequence[Tensor] | None, dtype: torch.dtype
    ) -> None:
        self._linear: Linear = backend.prepare_linear(
            join(weights, dtype), None if biases is None else torch.cat(list(biases))
        )
        self.linears = (self._linear,)

    def __call__(self, x: Tensor) -> Tensor:
        return self._linear(x)


class GatedParallel:
    """silu(x times gate) * (x times up); each rank computes its share of the outputs."""

    def __init__(self, backend: Backend, gate: Weight, up: Weight, biases: Sequence[Tensor] | None) -> None:
        self._linear: Linear = backend.prepare_gate_up(gate, up, *(biases or ()))
        self.linears = (self._linear,)

    def __call__(self, x: Tensor) -> Tensor:
        return self._linear(x)


class RowParallel:
    """Each rank holds the inputs' columns that its share of the layer before gives; outputs are summed."""

    def __init__(
        self, backend: Backend, weight: Weight, bias: Tensor | None, shard: Shard, collective: Collective
    ) -> None:
        # One rank alone adds the bias, else the sum would hold it once for each.
        self._linear: Linear = backend.prepare_linear(weight, bias if shard.tp_rank == 0 else None)
        self._collective = collective
        self.linears = (self._linear,)

    def __call__(self, x: Tensor) -> Tensor:
        return self._collective.all_reduce(self._linear(x))


class VocabParallelEmbedding:
    """Rows of the vocabulary by rank; a token of another rank's part is zero here and summed in."""

    def __init__(self, weight: Tensor, shard: Shard, collective: Collective) -> None:
        self.weight = weight
        self._first = shard.tp_rank * len(weight)
        self._whole = shard.tp_size == 1
        self._collective = collective

    def __call__(self, tokens: Tensor) -> Tensor:
        if self._whole:
            return self.weight.index_select(0, tokens)
        own = tokens - self._first
        absent = (own < 0) | (own >= len(self.weight))
        rows = self.weight.index_select(0, own.clamp(0, len(self.weight) - 1))
        return self._collective.all_reduce(rows.masked_fill(absent[:, None], 0))


class VocabParallelHead:
    """Logits of this rank's part of the vocabulary, gathered; float32."""

    def __init__(self, backend: Backend, weight: Tensor, collective: Collective) -> None:
        self._linear: Linear = backend.prepare_logits(weight)
        self._collective = collective
        self.linears = (self._linear,)

    def __call__(self, x: Tensor) -> Tensor:
        return self._collective.all_gather(self._linear(x))
