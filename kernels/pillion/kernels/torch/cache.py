"""Paged keys and values, head by head: a block of one head is one contiguous piece."""

import torch
from torch import Tensor

from pillion.kernels.interface import CacheShape


class PagedCache:
    """K and V, each [L, kv_heads, num_blocks + 1, block_size, head_size].

    The last block stays zero: it stands in wherever a gather reaches beyond a sequence's blocks.
    """

    def __init__(self, shape: CacheShape) -> None:
        self.shape = shape
        self.blocks = shape.num_blocks + 1
        size = (shape.layers, shape.kv_heads, self.blocks, shape.block_size, shape.head_size)
        # Not filled: pages that no sequence has used cost no memory.
        self.k = torch.empty(size, dtype=shape.dtype, device=shape.device)
        self.v = torch.empty(size, dtype=shape.dtype, device=shape.device)
        self.k[:, :, self.zero_block] = 0
        self.v[:, :, self.zero_block] = 0
        # By layer: single positions to write, whole blocks to gather.
        self.k_rows = [layer.view(-1, shape.head_size) for layer in self.k]
        self.v_rows = [layer.view(-1, shape.head_size) for layer in self.v]
        self.k_blocks = [layer.view(-1, shape.block_size * shape.head_size) for layer in self.k]
        self.v_blocks = [layer.view(-1, shape.block_size * shape.head_size) for layer in self.v]

    @property
    def zero_block(self) -> int:
        return self.blocks - 1

    def clear_values(self, blocks: Tensor) -> None:
        """Zeroes the values of blocks int64 [N] in all layers: a hidden key weighs 0, and 0 x NaN is NaN."""
        self.v.index_fill_(2, blocks, 0)

    def read(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        heads, size = self.shape.kv_heads, self.shape.head_size
        k = self.k[layer].view(heads, -1, size)[:, slots].transpose(0, 1)
        v = self.v[layer].view(heads, -1, size)[:, slots].transpose(0, 1)
        return k, v
