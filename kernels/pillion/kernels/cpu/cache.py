"""Paged keys and values as the kernels read them."""

import ctypes
import mmap

import torch
from torch import Tensor

from pillion.kernels.cpu import native
from pillion.kernels.interface import CacheShape

GROUP = 16  # positions that lie together
_LARGE = 2 << 20  # bytes


class PagedCache:
    """K and V: `numbers` [L, num_blocks, kv_heads, 2, block_size / 16, 16 * size].

    `size` is the head size rounded up to 16. Within a group of 16 positions, K is [size / 2, 16, 2] and V is
    [8, size, 2]: pairs along what a product sums over. Behind the numbers of a block and head, if they are
    int8, are their `scales`, float32 [L, num_blocks, kv_heads, 2, block_size].
    """

    def __init__(self, shape: CacheShape) -> None:
        self.shape = shape
        self.size = -(-shape.head_size // GROUP) * GROUP
        dtype = torch.int8 if shape.int8 else torch.bfloat16
        own = 2 * shape.block_size * self.size * dtype.itemsize
        scales = 2 * shape.block_size * 4 if shape.int8 else 0
        # Not filled: pages that no sequence has used cost no memory.
        self.all = torch.empty(
            shape.layers, shape.num_blocks, shape.kv_heads, own + scales, dtype=torch.uint8
        )
        _in_large_pages(self.all)
        groups = (2, shape.block_size // GROUP, GROUP * self.size)
        self.numbers = self.all[..., :own].view(dtype).unflatten(-1, groups)
        self.scales = self.all[..., own:].view(torch.float32).unflatten(-1, (2, -1)) if shape.int8 else None
        self.layers = (native.Cache * shape.layers)(
            *(
                native.Cache(
                    layer.data_ptr(), shape.block_size, shape.kv_heads, shape.head_size, dtype.itemsize
                )
                for layer in self.all
            )
        )
        self.pointer = ctypes.addressof(self.layers)
        self.pointers = [ctypes.addressof(layer) for layer in self.layers]

    def read(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        shape, size = self.shape, self.size
        block, offset = slots // shape.block_size, slots % shape.block_size
        k, v = self.numbers[layer][block, :, :, offset // GROUP].unbind(2)  # [N, kv_heads, 16 * size]
        rows, lane = torch.arange(len(slots)), offset % GROUP
        k = k.unflatten(-1, (size // 2, GROUP, 2))[rows, :, :, lane].flatten(-2)
        v = v.unflatten(-1, (GROUP // 2, size, 2))[rows, :, lane // 2, :, lane % 2]
        if self.scales is not None:
            by = self.scales[layer][block, :, :, offset]  # [N, kv_heads, 2]
            k, v = (k * by[..., :1]).to(shape.dtype), (v * by[..., 1:]).to(shape.dtype)
        return k[..., : shape.head_size], v[..., : shape.head_size]


def _in_large_pages(tensor: Tensor) -> None:
    """Asks for them, which a system may not heed. Blocks lie anywhere, in small pages each in its own."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None:
        return
    first = tensor.data_ptr() + -tensor.data_ptr() % _LARGE
    size = (tensor.data_ptr() + tensor.nbytes - first) // _LARGE * _LARGE
    if size > 0:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), advice)
