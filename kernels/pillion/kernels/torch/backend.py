"""The `torch` backend: operators that run wherever torch does."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pillion.kernels import filters
from pillion.kernels.four_bit import Weight
from pillion.kernels.interface import AttentionBatch, Block, CacheShape, Capabilities, Linear
from pillion.kernels.torch.attention import SPAN, TILE, Attention, Scratch
from pillion.kernels.torch.cache import PagedCache
from pillion.kernels.torch.linear import GateUp, PackedLinear, PanelLinear, PlainLinear, packable

_LANES = 16  # block sizes are multiples of it, so that whole vectors of a softmax are hidden or not


class TorchBackend:
    name = "torch"
    build = "torch-2"
    capabilities = Capabilities(
        devices=("cpu", "cuda"),
        dtypes=(torch.bfloat16, torch.float32, torch.float16),
        block_multiple=_LANES,
        block_size=32,
        tile=16,
        row_invariant=True,
    )

    def __init__(self, quantization: str = "none") -> None:
        assert quantization in self.capabilities.quantizations
        self._scratch: Scratch | None = None
        self._row_multiples: dict[tuple[int, int, str], int] = {}

    def prepare_linear(self, weight: Weight, bias: Tensor | None = None) -> Linear:
        assert isinstance(weight, Tensor)
        return PackedLinear(weight, bias) if packable(weight) else PlainLinear(weight, bias)

    def prepare_gate_up(
        self, gate: Weight, up: Weight, gate_bias: Tensor | None = None, up_bias: Tensor | None = None
    ) -> Linear:
        assert isinstance(gate, Tensor) and isinstance(up, Tensor)
        bias = None if gate_bias is None or up_bias is None else torch.cat([gate_bias, up_bias])
        return GateUp(self.prepare_linear(torch.cat([gate, up]), bias))

    def prepare_logits(self, weight: Tensor) -> Linear:
        return PanelLinear(weight)

    def allocate_cache(self, shape: CacheShape) -> PagedCache:
        if shape.block_size % _LANES:
            raise ValueError(
                f"the block size {shape.block_size} is no multiple of {_LANES}; set --block-size"
            )
        return PagedCache(shape)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        x = x.float()
        return functional.rms_norm(x, x.shape[-1:], weight.float(), eps).to(weight.dtype)

    def rope_table(self, positions: Tensor, frequencies: Tensor, scale: float) -> Tensor:
        angles = positions[:, None].float() * frequencies
        return torch.polar(torch.full_like(angles, scale), angles)[:, None]

    def rope(self, x: Tensor, table: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().view(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * table).flatten(-2)

    def begin(self, cache: PagedCache, batch: AttentionBatch, heads: int) -> Attention:
        shape = cache.shape
        key = (shape.head_size, max(SPAN // shape.block_size, 1) * shape.block_size, shape.device.type)
        multiple = self._row_multiples.get(key)
        if multiple is None:
            multiple = self._row_multiples[key] = row_multiple(key[0], key[1], shape.device)
        if self._scratch is None:
            self._scratch = Scratch(shape.device)
        return Attention(cache, batch, heads, multiple, self._scratch)

    def attention(
        self, step: Attention, layer: int, q: Tensor, k: Tensor, v: Tensor, window: int | None = None
    ) -> Tensor:
        step.write(layer, k, v)
        for group in step.groups(window):
            step.attend(layer, q, group)
        return step.out

    def fuse(self, blocks: Sequence[Block], heads: int, kv_heads: int, head_size: int, eps: float) -> None:
        return None

    def draw(self, logits: Tensor, wishes: NDArray[np.void]) -> NDArray[np.int64]:
        return filters.draws(logits, wishes)


def row_multiple(head_size: int, span: int, device: torch.device) -> int:
    """The smallest number whose multiples, as query rows of both attention products, give rows equal bits."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(4 * TILE, head_size, generator=generator).to(device)
    weights = torch.rand(4 * TILE, span, generator=generator).to(device)
    keys = torch.randn(span, head_size, generator=generator).to(device)

    def same(left: Tensor, right: Tensor, rows: int) -> bool:
        whole = torch.bmm(left[None], right[None])[0, :rows]
        return all(
            torch.equal(
                torch.bmm(left[:rows].repeat(batch, 1, 1), right.expand(batch, -1, -1)),
                whole.expand(batch, -1, -1),
            )
            for batch in (1, 2, 3, 8, 48)
        )

    for multiple in (1, 2, 4, 8, 16, 32, 64, TILE):
        counts = {multiple * factor for factor in (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 24, 32)}
        if all(
            same(query, keys.t(), rows) and same(weights, keys, rows) for rows in counts if rows <= 4 * TILE
        ):
            return multiple
    return 4 * TILE
