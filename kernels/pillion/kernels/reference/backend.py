"""Every operation in its plainest form. Slow; what the other backends are compared with."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pillion.kernels import filters
from pillion.kernels.four_bit import Weight
from pillion.kernels.interface import AttentionBatch, Block, CacheShape, Capabilities, Linear


class ReferenceCache:
    """K and V as the words say: [L, num_blocks, block_size, kv_heads, head_size].

    What would be int8 is float32: the number times its scale.
    """

    def __init__(self, shape: CacheShape) -> None:
        self.shape = shape
        size = (shape.layers, shape.num_blocks, shape.block_size, shape.kv_heads, shape.head_size)
        dtype = torch.float32 if shape.int8 else shape.dtype
        self.k = torch.zeros(size, dtype=dtype, device=shape.device)
        self.v = torch.zeros(size, dtype=dtype, device=shape.device)

    def read(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        return self.k[layer].flatten(0, 1)[slots], self.v[layer].flatten(0, 1)[slots]


class ReferenceLinear:
    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self.out_features, self.in_features = weight.shape
        self.weight_bytes = weight.nbytes
        self._weight = weight
        self._bias = bias
        self._dtype = dtype

    def __call__(self, x: Tensor) -> Tensor:
        # One product for each row: a row cannot depend on how many there are.
        weight = self._weight.float()
        rows = torch.stack([weight @ row for row in x.float()])
        if self._bias is not None:
            rows = rows + self._bias.float()
        return rows.to(self._dtype)


class ReferenceGateUp:
    def __init__(self, gate: ReferenceLinear, up: ReferenceLinear) -> None:
        self.out_features, self.in_features = gate.out_features, gate.in_features
        self.weight_bytes = gate.weight_bytes + up.weight_bytes
        self._gate = gate
        self._up = up

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self._gate(x), self._up(x)
        wide = gate.float()
        return (wide * torch.sigmoid(wide) * up.float()).to(gate.dtype)


@dataclass(frozen=True, slots=True)
class ReferenceStep:
    cache: ReferenceCache
    batch: AttentionBatch


class ReferenceBackend:
    name = "reference"
    build = "reference-2"
    capabilities = Capabilities(
        devices=("cpu", "cuda"),
        dtypes=(torch.float32, torch.bfloat16, torch.float16),
        block_multiple=1,
        block_size=16,
        tile=1,
        row_invariant=True,
        any_rows=True,
        kv_int8=True,
    )

    def __init__(self, quantization: str = "none") -> None:
        assert quantization in self.capabilities.quantizations

    def prepare_linear(self, weight: Weight, bias: Tensor | None = None) -> Linear:
        assert isinstance(weight, Tensor)
        return ReferenceLinear(weight, bias, weight.dtype)

    def prepare_gate_up(
        self, gate: Weight, up: Weight, gate_bias: Tensor | None = None, up_bias: Tensor | None = None
    ) -> Linear:
        assert isinstance(gate, Tensor) and isinstance(up, Tensor)
        return ReferenceGateUp(
            ReferenceLinear(gate, gate_bias, gate.dtype), ReferenceLinear(up, up_bias, up.dtype)
        )

    def prepare_logits(self, weight: Tensor) -> Linear:
        return ReferenceLinear(weight, None, torch.float32)

    def allocate_cache(self, shape: CacheShape) -> ReferenceCache:
        return ReferenceCache(shape)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        x = x.float()
        mean_square = x.pow(2).sum(-1, keepdim=True) / x.shape[-1]
        return (x / torch.sqrt(mean_square + eps) * weight.float()).to(weight.dtype)

    def rope_table(self, positions: Tensor, frequencies: Tensor, scale: float) -> Tensor:
        angles = positions[:, None].float() * frequencies
        return torch.stack([angles.cos(), angles.sin()]) * scale

    def rope(self, x: Tensor, table: Tensor) -> Tensor:
        cos, sin = table[:, :, None]
        even, odd = x.float()[..., 0::2], x.float()[..., 1::2]
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)

    def begin(self, cache: ReferenceCache, batch: AttentionBatch, heads: int) -> ReferenceStep:
        return ReferenceStep(cache, batch)

    def attention(
        self, step: ReferenceStep, layer: int, q: Tensor, k: Tensor, v: Tensor, window: int | None = None
    ) -> Tensor:
        cache, batch, shape = step.cache, step.batch, step.cache.shape
        cache.k[layer].flatten(0, 1)[batch.slot_mapping] = _held(k, shape)
        cache.v[layer].flatten(0, 1)[batch.slot_mapping] = _held(v, shape)
        heads = q.shape[1]
        out = torch.zeros(len(q), heads * shape.head_size, dtype=shape.dtype, device=q.device)
        row = 0
        for sequence, (count, length) in enumerate(zip(batch.query_lens, batch.kv_lens, strict=True)):
            for position in range(length - count, length):
                first = 0 if window is None else max(0, position - window + 1)
                seen = torch.arange(first, position + 1, device=q.device)
                blocks = batch.block_table[sequence].long()[seen // shape.block_size]
                keys, values = cache.read(layer, blocks * shape.block_size + seen % shape.block_size)
                share = heads // shape.kv_heads
                keys = keys.float().repeat_interleave(share, 1)
                values = values.float().repeat_interleave(share, 1)
                scores = torch.einsum("hd,khd->hk", q[row].float(), keys) * shape.head_size**-0.5
                weights = torch.softmax(scores, -1)
                out[row] = torch.einsum("hk,khd->hd", weights, values).flatten().to(shape.dtype)
                row += 1
        return out

    def fuse(self, blocks: Sequence[Block], heads: int, kv_heads: int, head_size: int, eps: float) -> None:
        return None

    def draw(self, logits: Tensor, wishes: NDArray[np.void]) -> NDArray[np.int64]:
        return filters.draws(logits, wishes)


def _held(x: Tensor, shape: CacheShape) -> Tensor:
    """Keys or values [T, kv_heads, head_size] as the cache holds them."""
    if not shape.int8:
        return x.to(shape.dtype)
    scale = x.float().abs().amax(-1, keepdim=True) / 127
    return torch.round(x.float() / scale.clamp(min=1e-30)) * scale
