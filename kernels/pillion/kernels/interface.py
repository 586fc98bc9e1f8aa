"""What a backend must offer. All shapes are in elements; T rows a step, S sequences, L layers.

Heads are laid out for rotary embeddings as in their paper (arXiv 2104.09864, eq. 34): elements 2i and 2i + 1
of a head turn together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pillion.kernels.four_bit import Weight


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can run, and what it likes best."""

    devices: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    block_multiple: int  # a block size must be a multiple of it
    block_size: int  # preferred
    tile: int  # rows at whose multiples the GEMMs are efficient
    # A row's bits do not depend on the rows beside it: for row counts that a check found equal, or for all.
    row_invariant: bool
    any_rows: bool = False
    # How weights may be held: as they are; as int8, with a scale for each group of inputs; as in a GGUF file
    # where that is 4 bit, else as int8.
    quantizations: tuple[str, ...] = ("none",)
    kv_int8: bool = False  # whether keys and values may be held as int8


@dataclass(frozen=True, slots=True)
class CacheShape:
    """A KV cache, block 0 included: logically twice [L, num_blocks, block_size, kv_heads, head_size].

    `int8`: held so, with a float32 scale for each position and head of K and of V; `dtype` is of results.
    """

    layers: int
    num_blocks: int
    block_size: int
    kv_heads: int
    head_size: int
    dtype: torch.dtype
    device: torch.device
    int8: bool = False

    @property
    def bytes(self) -> int:
        return self.num_blocks * self.block_bytes

    @property
    def block_bytes(self) -> int:
        return self.layers * self.block_size * self.position_bytes

    @property
    def position_bytes(self) -> int:
        """Keys and values of one position in one layer, scales included."""
        head = self.head_size + 4 if self.int8 else self.head_size * self.dtype.itemsize
        return 2 * self.kv_heads * head


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """Which tokens a step computes, and where the keys of each sequence are.

    Sequence s has the rows cu_seqlens_q[s]:cu_seqlens_q[s+1], which are its last tokens, at ascending
    positions; its keys are the first seqused_k[s] positions of its block table, its own rows included. Rows
    beyond cu_seqlens_q[S] are padding: their keys go to block 0 and their outputs mean nothing. What a block
    holds beyond seqused_k is undefined, and may be NaN; a sequence writes a block from its first position on.
    """

    positions: Tensor  # int64 [T]
    slot_mapping: Tensor  # int64 [T]: block * block_size + offset
    cu_seqlens_q: Tensor  # int32 [S + 1]
    seqused_k: Tensor  # int32 [S]
    block_table: Tensor  # int32 [S, max_blocks]
    query_lens: Sequence[int]  # the same on the host, so that nothing waits for the device
    kv_lens: Sequence[int]


WISH = np.dtype(
    [
        ("temperature", np.float64),  # 1e-5 to 1e38; 0: the likeliest token
        ("top_p", np.float64),  # 1: all
        ("min_p", np.float64),
        ("uniform", np.float64),  # in [0, 1): where in the distribution to draw
        ("top_k", np.int64),  # 0: all
    ]
)
"""How a row's token is drawn: temperature first, then top-k, then top-p of what is left, then min-p relative
to the likeliest; of the rest the distribution is inverted in order of id. Equal logits rank by id."""


class Cache(Protocol):
    """Keys and values of all layers; the layout is the backend's own."""

    shape: CacheShape

    def read(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values at the slots int64 [N], each [N, kv_heads, head_size]. For tests and transfers."""
        ...


class Linear(Protocol):
    """x [T, in] times a prepared weight, plus bias: [T, out] in the weight's dtype, or float32 where said."""

    in_features: int
    out_features: int
    weight_bytes: int  # read by a product, scales included

    def __call__(self, x: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Block:
    """One transformer block: attention and gated MLP, each behind a norm and added to its input."""

    input_norm: Tensor
    qkv: Linear  # queries, keys and values side by side
    query_norm: Tensor | None  # of each head
    key_norm: Tensor | None
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear
    window: int | None


class Fused(Protocol):
    """Several blocks as one call."""

    def __call__(self, hidden: Tensor, table: Tensor, step: Any) -> None:
        """Adds what they give to hidden float32 [T, H]; `table` is of `rope_table`, `step` of `begin`."""
        ...


class Backend(Protocol):
    """Kernels of one kind. An instance may hold scratch memory and serves one thread."""

    name: str
    build: str  # what the bits depend on beside torch: part of the fingerprint
    capabilities: Capabilities

    def prepare_linear(self, weight: Weight, bias: Tensor | None = None) -> Linear:
        """Packs a weight [out, in]; the plain tensor is not kept. 4 bit only comes for quantization gguf."""
        ...

    def prepare_gate_up(
        self, gate: Weight, up: Weight, gate_bias: Tensor | None = None, up_bias: Tensor | None = None
    ) -> Linear:
        """silu(x times gate) * (x times up), each with its bias: [T, out] of two weights [out, in]."""
        ...

    def prepare_logits(self, weight: Tensor) -> Linear:
        """x float32 [R, in] times a weight [out, in]: float32 [R, out], rounded nowhere on the way.

        The plain tensor is used as it is, for it may be the embedding's too.
        """
        ...

    def allocate_cache(self, shape: CacheShape) -> Cache:
        """Raises ValueError for a block size that does not suit."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / sqrt(mean(x^2) + eps) * weight over the last axis, in float32; in the weight's dtype."""
        ...

    def rope_table(self, positions: Tensor, frequencies: Tensor, scale: float) -> Tensor:
        """What `rope` needs of the positions int64 [T].

        frequencies are float32 [head_size / 2], radians a position. Made once a step; `scale` multiplies the
        result (YaRN).
        """
        ...

    def rope(self, x: Tensor, table: Tensor) -> Tensor:
        """Turns the heads of x [T, heads, head_size]; float32 of the same shape."""
        ...

    def begin(self, cache: Cache, batch: AttentionBatch, heads: int) -> Any:
        """Prepares a step's attention: what all layers have in common."""
        ...

    def attention(
        self, step: Any, layer: int, q: Tensor, k: Tensor, v: Tensor, window: int | None = None
    ) -> Tensor:
        """Writes k and v [T, kv_heads, head_size] to their slots, then attends causally.

        q [T, heads, head_size], unscaled; a query at p sees the keys at positions > p - window. The result,
        [T, heads * head_size] in the cache's dtype, is valid until the next call.
        """
        ...

    def fuse(
        self, blocks: Sequence[Block], heads: int, kv_heads: int, head_size: int, eps: float
    ) -> Fused | None:
        """The blocks as one call, with the bits of the operators one by one; None where there is none."""
        ...

    def draw(self, logits: Tensor, wishes: NDArray[np.void]) -> NDArray[np.int64]:
        """A token for each row of logits float32 [R, V], which are left as they are, by its WISH [R].

        A row's token depends on the row and its wish alone. It is -1 where the largest logit is not finite; a
        NaN counts as the largest.
        """
        ...
