"""Blocks of 4-bit GGUF types without dequantizing them; the layouts are those of GGML's formats."""

import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from pillion.kernels.four_bit import FourBit

Bytes = NDArray[np.uint8]
Halves = NDArray[np.float16]


def unpack(raw: Bytes, kind: int) -> FourBit | None:
    """The matrix whose rows are `raw` [out, bytes]; None for a type that is not of 4 bits, or not known."""
    unpacked = {Type.Q4_0: _q4_0, Type.Q4_1: _q4_1, Type.Q4_K: _q4_k}.get(Type(kind))
    if unpacked is None:
        return None
    values, scales, lowest = unpacked(raw)
    rows = len(raw)
    return FourBit(
        *(torch.from_numpy(np.ascontiguousarray(part.reshape(rows, -1))) for part in (values, scales, lowest))
    )


def _q4_0(raw: Bytes) -> tuple[Bytes, Halves, Halves]:
    """18 bytes for 32: a scale, then the first 16 numbers in the low halves of bytes; 8 stands for zero."""
    blocks = raw.reshape(-1, 18)
    scales = blocks[:, :2].copy().view(np.float16)
    return _halves(blocks[:, 2:]), scales, scales * np.float16(-8)


def _q4_1(raw: Bytes) -> tuple[Bytes, Halves, Halves]:
    """20 bytes for 32: a scale, the lowest, and the numbers."""
    blocks = raw.reshape(-1, 20)
    both = blocks[:, :4].copy().view(np.float16)
    return _halves(blocks[:, 4:]), both[:, 0], both[:, 1]


def _q4_k(raw: Bytes) -> tuple[Bytes, Halves, Halves]:
    """144 bytes for 256: two scales of scales, twelve bytes of 6-bit scales and lowests of 8 blocks, numbers.

    What a block's numbers are multiplied with is a product here, rounded to a half float.
    """
    blocks = raw.reshape(-1, 144)
    both = blocks[:, :4].copy().view(np.float16).astype(np.float32)
    small = blocks[:, 4:16].reshape(-1, 3, 4)
    first, second, rest = small[:, 0], small[:, 1], small[:, 2]
    scales = np.concatenate([first & 63, rest & 15 | first >> 6 << 4], 1)
    lowest = np.concatenate([second & 63, rest >> 4 | second >> 6 << 4], 1)
    values = np.concatenate(
        [
            half[:, :, None]
            for half in (blocks[:, 16:].reshape(-1, 4, 32) & 15, blocks[:, 16:].reshape(-1, 4, 32) >> 4)
        ],
        2,
    )
    return (
        values,
        (both[:, :1] * scales).astype(np.float16),
        (-both[:, 1:] * lowest).astype(np.float16),
    )


def _halves(packed: Bytes) -> Bytes:
    return np.concatenate([packed & 15, packed >> 4], 1)
