"""All transformer blocks as one call."""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pillion.kernels.cpu import native
from pillion.kernels.cpu.linear import GateUp, PackedLinear
from pillion.kernels.cpu.pool import Pool
from pillion.kernels.interface import Block

NO_WINDOW = 1 << 40


class Blocks:
    """Holds the blocks' tensors, and scratch for the most rows that a step has had."""

    def __init__(
        self, library: ctypes.CDLL, pool: Pool, blocks: Sequence[Block], sizes: native.Sizes
    ) -> None:
        self._pool = pool
        self._blocks = blocks
        self._sizes = sizes
        self._structures = (native.Block * len(blocks))(*map(_structure, blocks))
        self._call = library.pillion_blocks
        self._row_bytes: int = library.pillion_scratch(ctypes.byref(sizes))
        self._scratch = torch.empty(0, dtype=torch.uint8)

    @classmethod
    def of(
        cls, library: ctypes.CDLL, pool: Pool, blocks: Sequence[Block], sizes: native.Sizes
    ) -> "Blocks | None":
        """None where an operator would have to pad its input."""
        linears = [one for block in blocks for one in (block.qkv, block.output, block.gate_up, block.down)]
        padded = any(one.panels.padding for one in linears if isinstance(one, PackedLinear | GateUp))
        return None if padded else cls(library, pool, blocks, sizes)

    def __call__(self, hidden: Tensor, table: Tensor, step: Any) -> None:
        rows = len(hidden)
        if len(self._scratch) < rows * self._row_bytes:
            self._scratch = torch.empty(rows * self._row_bytes, dtype=torch.uint8)
        self._call(
            *(self._pool.pointer, ctypes.byref(self._sizes), self._structures),
            *(step.cache.pointer, len(self._blocks), step.pointer, table.data_ptr()),
            *(rows, hidden.data_ptr(), self._scratch.data_ptr()),
        )


def _structure(block: Block) -> native.Block:
    def packed(linear: Any) -> native.Packed:
        assert isinstance(linear, PackedLinear | GateUp)
        return linear.panels.structure

    def pointer(tensor: Tensor | None) -> int | None:
        return None if tensor is None else tensor.data_ptr()

    return native.Block(
        *(pointer(block.input_norm), pointer(block.mlp_norm)),
        *(pointer(block.query_norm), pointer(block.key_norm)),
        *map(packed, (block.qkv, block.output, block.gate_up, block.down)),
        block.window or NO_WINDOW,
    )
