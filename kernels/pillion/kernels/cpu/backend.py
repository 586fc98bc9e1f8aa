"""The `cpu` backend: a step's operators in C++, their work taken in small pieces by whoever has a core."""

import ctypes
import functools
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pillion.kernels.cpu import native
from pillion.kernels.cpu.blocks import NO_WINDOW, Blocks
from pillion.kernels.cpu.cache import GROUP, PagedCache
from pillion.kernels.cpu.linear import GateUp, Head, PackedLinear, ScaledHead
from pillion.kernels.cpu.pool import Pool
from pillion.kernels.four_bit import Weight
from pillion.kernels.interface import WISH, AttentionBatch, Block, CacheShape, Capabilities, Fused, Linear

_TYPES = {torch.float32: 0, torch.bfloat16: 1}


class Attention:
    """One step's attention."""

    def __init__(self, cache: PagedCache, batch: AttentionBatch, heads: int) -> None:
        self.cache = cache
        self.heads = heads
        self.scale = cache.shape.head_size**-0.5
        self.batch = batch  # holds what the structure points to
        self._structure = native.Batch(
            len(batch.query_lens),
            batch.cu_seqlens_q.data_ptr(),
            batch.seqused_k.data_ptr(),
            batch.block_table.data_ptr(),
            batch.block_table.stride(0),
        )
        self.pointer = ctypes.addressof(self._structure)

    @functools.cached_property
    def out(self) -> Tensor:
        """Made when a layer is computed by itself: all blocks as one have room of their own."""
        batch, width = self.batch, self.heads * self.cache.shape.head_size
        out = torch.empty(len(batch.slot_mapping), width, dtype=torch.bfloat16)
        out[sum(batch.query_lens) :] = 0
        return out


class CpuBackend:
    name = "cpu"
    capabilities = Capabilities(
        devices=("cpu",),
        dtypes=(torch.bfloat16,),
        block_multiple=GROUP,
        block_size=32,
        tile=16,
        row_invariant=True,
        any_rows=True,
        quantizations=("none", "int8", "gguf"),
        kv_int8=True,
    )

    def __init__(self, quantization: str = "none", *, march: str = "native") -> None:
        """With as many threads as torch has now. Raises NoKernels."""
        self._scaled = quantization != "none"
        # Of the head's activations: with 4 bit it comes as near to the file as can be, and waits for memory.
        self._parts = 2 if quantization == "gguf" else 1
        self._library = native.library(march)
        self.target: str = self._library.pillion_target().decode()
        self.build = f"cpu-4 {quantization} {self.target}"
        self._pool = Pool(self._library, torch.get_num_threads())

    def prepare_linear(self, weight: Weight, bias: Tensor | None = None) -> Linear:
        return PackedLinear(self._library, self._pool, weight, bias, self._scaled)

    def prepare_gate_up(
        self, gate: Weight, up: Weight, gate_bias: Tensor | None = None, up_bias: Tensor | None = None
    ) -> Linear:
        return GateUp(self._library, self._pool, gate, up, gate_bias, up_bias, self._scaled)

    def prepare_logits(self, weight: Tensor) -> Linear:
        if self._scaled:
            return ScaledHead(self._library, self._pool, weight, self._parts)
        return Head(self._library, self._pool, weight)

    def allocate_cache(self, shape: CacheShape) -> PagedCache:
        if shape.block_size % GROUP:
            raise ValueError(f"the block size {shape.block_size} is no multiple of {GROUP}; set --block-size")
        return PagedCache(shape)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        x = x.contiguous()
        out = torch.empty(x.shape, dtype=weight.dtype)
        width = x.shape[-1]
        self._library.pillion_rms_norm(
            *(self._pool.pointer, _TYPES[x.dtype], x.data_ptr(), _TYPES[weight.dtype], weight.data_ptr()),
            *(x.numel() // width, width, eps, out.data_ptr()),
        )
        return out

    def rope_table(self, positions: Tensor, frequencies: Tensor, scale: float) -> Tensor:
        angles = positions[:, None].float() * frequencies
        return torch.stack((angles.cos(), angles.sin()), -1).mul_(scale)

    def rope(self, x: Tensor, table: Tensor) -> Tensor:
        rows, heads, size = x.shape
        if x.stride()[1:] != (size, 1):
            x = x.contiguous()
        out = torch.empty(x.shape)
        self._library.pillion_rope(
            *(self._pool.pointer, _TYPES[x.dtype], x.data_ptr(), x.stride(0), table.data_ptr()),
            *(rows, heads, size, out.data_ptr()),
        )
        return out

    def begin(self, cache: PagedCache, batch: AttentionBatch, heads: int) -> Attention:
        return Attention(cache, batch, heads)

    def attention(
        self, step: Attention, layer: int, q: Tensor, k: Tensor, v: Tensor, window: int | None = None
    ) -> Tensor:
        q, k, v = _by_rows(q, torch.float32), _by_rows(k, torch.float32), _by_rows(v, torch.bfloat16)
        self._library.pillion_attention(
            *(self._pool.pointer, step.cache.pointers[layer], step.pointer, step.heads, window or NO_WINDOW),
            *(q.data_ptr(), q.stride(0), k.data_ptr(), k.stride(0), v.data_ptr(), v.stride(0)),
            *(step.scale, step.out.data_ptr()),
        )
        return step.out

    def fuse(
        self, blocks: Sequence[Block], heads: int, kv_heads: int, head_size: int, eps: float
    ) -> Fused | None:
        return Blocks.of(self._library, self._pool, blocks, native.Sizes(
            hidden=len(blocks[0].input_norm), heads=heads, kv_heads=kv_heads, head_size=head_size,
            mlp=blocks[0].gate_up.out_features, eps=eps, scale=head_size**-0.5,
        ))  # fmt: skip

    def draw(self, logits: Tensor, wishes: NDArray[np.void]) -> NDArray[np.int64]:
        if logits.stride(1) != 1:
            logits = logits.contiguous()
        wishes = np.ascontiguousarray(wishes, WISH)
        tokens = np.empty(len(wishes), np.int64)
        self._library.pillion_draw(
            *(self._pool.pointer, logits.data_ptr(), logits.stride(0), logits.shape[1]),
            *(wishes.ctypes.data, len(wishes), tokens.ctypes.data),
        )
        return tokens


def _by_rows(x: Tensor, dtype: torch.dtype) -> Tensor:
    """In this dtype, with dense heads."""
    x = x.to(dtype)
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()
