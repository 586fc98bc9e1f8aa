"""Weights of 4 bits as GGUF files hold them: 32 inputs have a scale and what zero stands for in common."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BLOCK = 32


@dataclass(frozen=True, slots=True)
class FourBit:
    """A matrix [out, in]: values * scales + lowest."""

    values: Tensor  # uint8 [out, in], below 16
    scales: Tensor  # float16 [out, in / 32]
    lowest: Tensor  # float16 [out, in / 32]

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> "FourBit":
        """Some of the outputs."""
        return FourBit(self.values[rows], self.scales[rows], self.lowest[rows])

    def plain(self, dtype: torch.dtype) -> Tensor:
        """The numbers that it stands for."""
        values = self.values.unflatten(1, (-1, BLOCK)).float()
        wide: Tensor = values * self.scales.float()[..., None] + self.lowest.float()[..., None]
        return wide.flatten(1).to(dtype)


Weight = Tensor | FourBit


def plain(weight: Weight, dtype: torch.dtype) -> Tensor:
    return weight.plain(dtype) if isinstance(weight, FourBit) else weight.to(dtype)


def join(weights: Sequence[Weight], dtype: torch.dtype) -> Weight:
    """One below the other; in 4 bit if all are."""
    packed = [weight for weight in weights if isinstance(weight, FourBit)]
    if len(packed) < len(weights):
        return torch.cat([plain(weight, dtype) for weight in weights])
    return FourBit(
        torch.cat([weight.values for weight in packed]),
        torch.cat([weight.scales for weight in packed]),
        torch.cat([weight.lowest for weight in packed]),
    )
