"""Rotary frequencies of each kind of context extension."""

import math

import torch
from torch import Tensor

from pillion.executor.models.spec import Rope


def frequencies(rope: Rope, head_size: int) -> tuple[Tensor, float]:
    """Radians a position for each pair of a head, float32 [head_size / 2], and the factor on the result.

    Raises ValueError for a kind that cannot be.
    """
    exponent = torch.arange(0, head_size, 2, dtype=torch.int64).float() / head_size
    base = 1.0 / rope.theta**exponent
    if rope.divisors is not None:
        base = base / torch.tensor(rope.divisors)
    match rope.kind:
        case "none":
            return base, 1.0
        case "linear":
            return base / rope.factor, 1.0
        case "llama3":
            return _llama3(rope, base), 1.0
        case "yarn":
            return _yarn(rope, base, head_size)
    raise ValueError(f"rope kind {rope.kind} is not supported; supported are none, linear, llama3, yarn")


def _llama3(rope: Rope, base: Tensor) -> Tensor:
    """Long waves are stretched by the factor, short ones kept, those between blended (Llama 3.1)."""
    turns = rope.original_max_position * base / (2 * math.pi)  # within the trained context
    smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    smooth = smooth.clamp(0, 1)
    return (1 - smooth) * base / rope.factor + smooth * base


def _yarn(rope: Rope, base: Tensor, head_size: int) -> tuple[Tensor, float]:
    """YaRN (arXiv 2309.00071), section 3.2: blended by pair index between the two numbers of turns."""

    def pair(turns: float) -> float:
        waves = rope.original_max_position / (turns * 2 * math.pi)
        return head_size * math.log(waves) / (2 * math.log(rope.theta))

    low = max(math.floor(pair(rope.beta_fast)), 0)
    high = min(math.ceil(pair(rope.beta_slow)), head_size - 1)
    ramp = (torch.arange(head_size // 2).float() - low) / max(high - low, 0.001)
    stretched = ramp.clamp(0, 1)
    attention = rope.attention_factor
    if attention is None:
        attention = 1.0 if rope.factor <= 1 else 0.1 * math.log(rope.factor) + 1.0
    return stretched * base / rope.factor + (1 - stretched) * base, attention
