"""Paged keys and values as the kernels read them."""

import ctypes

import torch
from torch import Tensor

from pillion.kernels.cpu import native
from pillion.kernels.interface import CacheShape

GROUP = 16  # positions that lie together


class PagedCache:
    """K and V, each [L, kv_heads, num_blocks, block_size / 16, 16 * size] in bfloat16.

    `size` is the head size rounded up to 16. Within a group of 16 positions, K is [size / 2, 16, 2] and V is
    [8, size, 2]: pairs along what a product sums over.
    """

    def __init__(self, shape: CacheShape) -> None:
        self.shape = shape
        self.size = -(-shape.head_size // GROUP) * GROUP
        size = (
            *(shape.layers, shape.kv_heads, shape.num_blocks, shape.block_size // GROUP),
            GROUP * self.size,
        )
        # Not filled: pages that no sequence has used cost no memory.
        self.k = torch.empty(size, dtype=torch.bfloat16)
        self.v = torch.empty(size, dtype=torch.bfloat16)
        self.layers = (native.Cache * shape.layers)(
            *(
                native.Cache(
                    self.k[layer].data_ptr(),
                    self.v[layer].data_ptr(),
                    *(shape.num_blocks, shape.block_size, shape.kv_heads, shape.head_size),
                )
                for layer in range(shape.layers)
            )
        )
        self.pointer = ctypes.addressof(self.layers)
        self.pointers = [ctypes.addressof(layer) for layer in self.layers]

    def read(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        heads, size = self.shape.kv_heads, self.shape.head_size
        group, lane = slots // GROUP, slots % GROUP
        k = self.k[layer].view(heads, -1, self.size // 2, GROUP, 2)[:, group, :, lane]
        v = self.v[layer].view(heads, -1, GROUP // 2, self.size, 2)[:, group, lane // 2, :, lane % 2]
        k = k.reshape(len(slots), heads, self.size)
        return k[..., :size], v.reshape(len(slots), heads, self.size)[..., :size]
