"""The `cpu` backend: a step's operators in C++, their work taken in small pieces by whoever has a core."""

import ctypes

import torch
from torch import Tensor
from torch.nn import functional

from pillion.kernels.cpu import native
from pillion.kernels.cpu.cache import GROUP, PagedCache
from pillion.kernels.interface import AttentionBatch, CacheShape, Capabilities, Linear

_NO_WINDOW = 1 << 40
_TYPES = {torch.float32: 0, torch.bfloat16: 1}


class Pool:
    """The threads. Freed with its last user."""

    def __init__(self, library: ctypes.CDLL, threads: int) -> None:
        """Raises NoKernels."""
        self.library = library
        self._free = library.pillion_pool_free
        self.pointer = library.pillion_pool(threads)
        if self.pointer is None:
            raise native.NoKernels(f"the system does not give {threads} threads; lower --threads")

    def __del__(self) -> None:
        if self.pointer is not None:
            self._free(self.pointer)


class PackedLinear:
    """A bfloat16 weight in panels of 16 outputs."""

    def __init__(self, pool: Pool, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self._odd = self.in_features % 2
        weight = functional.pad(weight, (0, self._odd)).contiguous()
        inputs = weight.shape[1]
        panels = -(-self.out_features // GROUP)
        self._panels = torch.empty(panels * inputs * GROUP, dtype=torch.bfloat16)
        self._bias = None if bias is None else bias.contiguous()
        library = pool.library
        library.pillion_pack(weight.data_ptr(), *weight.shape, self._panels.data_ptr())
        self._pool = pool
        self._call = library.pillion_linear
        bias_at = None if self._bias is None else self._bias.data_ptr()
        self._fixed = (pool.pointer, self._panels.data_ptr(), bias_at, self.out_features, inputs)

    def __call__(self, x: Tensor) -> Tensor:
        x = functional.pad(x, (0, 1)) if self._odd else x.contiguous()
        out = x.new_empty(len(x), self.out_features)
        self._call(*self._fixed, x.data_ptr(), len(x), out.data_ptr())
        return out


class WideLinear:
    """Float32 products with a bfloat16 weight as it is."""

    def __init__(self, pool: Pool, weight: Tensor) -> None:
        self.out_features, self.in_features = weight.shape
        self._pool = pool
        self._weight = weight.contiguous()
        self._call = pool.library.pillion_logits

    def __call__(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        out = x.new_empty(len(x), self.out_features)
        self._call(
            *(self._pool.pointer, self._weight.data_ptr(), self.out_features, self.in_features),
            *(x.data_ptr(), len(x), out.data_ptr()),
        )
        return out


class Attention:
    """One step's attention."""

    def __init__(self, cache: PagedCache, batch: AttentionBatch, heads: int) -> None:
        shape = cache.shape
        self.cache = cache
        self.heads = heads
        self.scale = shape.head_size**-0.5
        self.batch = batch  # holds what the structure points to
        self._structure = native.Batch(
            len(batch.query_lens),
            batch.cu_seqlens_q.data_ptr(),
            batch.seqused_k.data_ptr(),
            batch.block_table.data_ptr(),
            batch.block_table.stride(0),
        )
        self.pointer = ctypes.addressof(self._structure)
        rows = sum(batch.query_lens)
        self.out = torch.empty(len(batch.slot_mapping), heads * shape.head_size, dtype=torch.bfloat16)
        self.out[rows:] = 0


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
    )

    def __init__(self, march: str = "native") -> None:
        """With as many threads as torch has now. Raises NoKernels."""
        self._library = native.library(march)
        self.target: str = self._library.pillion_target().decode()
        self.build = f"cpu-1 {self.target}"
        self._pool = Pool(self._library, torch.get_num_threads())

    def prepare_linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        return PackedLinear(self._pool, weight, bias)

    def prepare_logits(self, weight: Tensor) -> Linear:
        return WideLinear(self._pool, weight)

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

    def silu_mul(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        half = x.shape[-1] // 2
        out = x.new_empty(len(x), half)
        self._library.pillion_silu_mul(self._pool.pointer, x.data_ptr(), len(x), half, out.data_ptr())
        return out

    def begin(self, cache: PagedCache, batch: AttentionBatch, heads: int) -> Attention:
        return Attention(cache, batch, heads)

    def attention(
        self, step: Attention, layer: int, q: Tensor, k: Tensor, v: Tensor, window: int | None = None
    ) -> Tensor:
        q, k, v = _by_rows(q, torch.float32), _by_rows(k, torch.float32), _by_rows(v, torch.bfloat16)
        self._library.pillion_attention(
            *(self._pool.pointer, step.cache.pointers[layer], step.pointer, step.heads, window or _NO_WINDOW),
            *(q.data_ptr(), q.stride(0), k.data_ptr(), k.stride(0), v.data_ptr(), v.stride(0)),
            *(step.scale, step.out.data_ptr()),
        )
        return step.out


def _by_rows(x: Tensor, dtype: torch.dtype) -> Tensor:
    """In this dtype, with dense heads."""
    x = x.to(dtype)
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()
