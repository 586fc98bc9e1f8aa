"""The dense family: Llama 2 and 3, SmolLM2, Yi, Mistral, Qwen2, Qwen3. What differs is in the spec."""

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from pillion.executor.models.parallel import (
    Collective,
    ColumnParallel,
    GatedParallel,
    RowParallel,
    Shard,
    VocabParallelEmbedding,
    VocabParallelHead,
)
from pillion.executor.models.rope import frequencies
from pillion.executor.models.spec import ModelSpec
from pillion.kernels.four_bit import FourBit, Weight, plain
from pillion.kernels.interface import Backend, Block, Linear


class Source(Protocol):
    """Where weights come from: tensors by their names in the Hugging Face checkpoint."""

    def get(self, name: str) -> Tensor: ...

    def four_bit(self, name: str) -> FourBit | None: ...


class _Reader:
    """A rank's parts of the weights, in the dtype and on the device that they are used in."""

    def __init__(
        self,
        source: Source,
        spec: ModelSpec,
        shard: Shard,
        dtype: torch.dtype,
        device: torch.device,
        packed: bool,
    ) -> None:
        """`packed` keeps matrices in 4 bit that the file holds so."""
        self.source = source
        self.spec = spec
        self.shard = shard
        self.dtype = dtype
        self._packed = packed
        self._device = device
        # Fewer KV heads than ranks: neighbours hold the same one.
        self._copies = max(1, shard.tp_size // spec.num_kv_heads)

    def whole(self, name: str) -> Tensor:
        return self._own(self.source.get(name))

    def rows(self, name: str) -> Tensor:
        tensor = self.source.get(name)
        return self._own(tensor[self.shard.part(len(tensor))])

    def matrix_rows(self, name: str) -> Weight:
        matrix = self._matrix(name)
        return self._kept(matrix[self.shard.part(len(matrix))])

    def columns(self, name: str) -> Weight:
        if self.shard.tp_size == 1:
            return self._kept(self._matrix(name))
        tensor = self.source.get(name)
        return self._own(tensor[:, self.shard.part(tensor.shape[1])])

    def query_heads(self, name: str) -> Weight:
        """Rows of this rank's query heads, in the order of rotary pairs."""
        matrix = self._matrix(name)
        heads = paired(torch.arange(len(matrix)).unflatten(0, (self.spec.num_heads, -1)), 1)
        return self._kept(matrix[heads[self.shard.part(self.spec.num_heads)].flatten()])

    def kv_heads(self, name: str, *, rotary: bool) -> Weight:
        matrix = self._matrix(name)
        heads = torch.arange(len(matrix)).unflatten(0, (self.spec.num_kv_heads, -1))
        heads = (paired(heads, 1) if rotary else heads).repeat_interleave(self._copies, 0)
        return self._kept(matrix[heads[self.shard.part(len(heads))].flatten()])

    def _matrix(self, name: str) -> Weight:
        packed = self.source.four_bit(name) if self._packed else None
        return self.source.get(name) if packed is None else packed

    def _kept(self, matrix: Weight) -> Weight:
        return matrix if isinstance(matrix, FourBit) else self._own(matrix)

    def _own(self, part: Tensor) -> Tensor:
        """A copy: what was read may be a view of the file."""
        return part.to(dtype=self.dtype, device=self._device, copy=True)


def paired(x: Tensor, axis: int) -> Tensor:
    """Checkpoints turn element i with i + half; here the two lie side by side. Scores do not change by it."""
    halves: Tensor = x.unflatten(axis, (2, -1))
    return halves.transpose(axis, axis + 1).flatten(axis, axis + 1)


class Layer:
    """One block: attention and gated MLP, each behind a norm and added to the residual stream."""

    def __init__(
        self, index: int, reader: _Reader, backend: Backend, collective: Collective, window: int | None
    ) -> None:
        spec, shard = reader.spec, reader.shard
        self._backend = backend
        self._eps = spec.rms_eps
        self._size = spec.head_size
        self._heads = spec.num_heads // shard.tp_size
        self._kv_heads = max(1, spec.num_kv_heads // shard.tp_size)
        self._window = window
        name = f"model.layers.{index}."
        attention, mlp = name + "self_attn.", name + "mlp."
        self._input_norm = reader.whole(name + "input_layernorm.weight")
        self._mlp_norm = reader.whole(name + "post_attention_layernorm.weight")

        def qkv(kind: str) -> list[Weight]:
            return [
                reader.query_heads(f"{attention}q_proj.{kind}"),
                reader.kv_heads(f"{attention}k_proj.{kind}", rotary=True),
                reader.kv_heads(f"{attention}v_proj.{kind}", rotary=False),
            ]

        def gate_up(kind: str) -> tuple[Weight, Weight]:
            return reader.matrix_rows(f"{mlp}gate_proj.{kind}"), reader.matrix_rows(f"{mlp}up_proj.{kind}")

        def biases(parts: Iterable[Weight]) -> list[Tensor]:
            return [plain(part, reader.dtype) for part in parts]

        def bias(present: bool, name: str) -> Tensor | None:
            return reader.whole(name) if present else None

        self._qkv = ColumnParallel(
            backend, qkv("weight"), biases(qkv("bias")) if spec.qkv_bias else None, reader.dtype
        )
        self._output = RowParallel(
            backend,
            reader.columns(attention + "o_proj.weight"),
            bias(spec.output_bias, attention + "o_proj.bias"),
            shard,
            collective,
        )
        self._gate_up = GatedParallel(
            backend, *gate_up("weight"), biases(gate_up("bias")) if spec.mlp_bias else None
        )
        self._down = RowParallel(
            backend,
            reader.columns(mlp + "down_proj.weight"),
            bias(spec.mlp_bias, mlp + "down_proj.bias"),
            shard,
            collective,
        )
        self._query_norm = self._key_norm = None
        if spec.qk_norm:
            self._query_norm = paired(reader.whole(attention + "q_norm.weight"), 0)
            self._key_norm = paired(reader.whole(attention + "k_norm.weight"), 0)
        self.linears = (
            *self._qkv.linears,
            *self._output.linears,
            *self._gate_up.linears,
            *self._down.linears,
        )

    def __call__(self, index: int, hidden: Tensor, table: Tensor, step: Any) -> None:
        """Adds the layer's outputs to `hidden` [T, H], float32. `index` counts the cache's layers."""
        backend = self._backend
        x = self._qkv(backend.rms_norm(hidden, self._input_norm, self._eps)).unflatten(-1, (-1, self._size))
        turned, v = x.split([self._heads + self._kv_heads, self._kv_heads], 1)
        if self._query_norm is not None and self._key_norm is not None:
            q, k = turned.split([self._heads, self._kv_heads], 1)
            q = backend.rms_norm(q, self._query_norm, self._eps)
            k = backend.rms_norm(k, self._key_norm, self._eps)
            turned = torch.cat([q, k], 1)
        q, k = backend.rope(turned, table).split([self._heads, self._kv_heads], 1)
        hidden += self._output(backend.attention(step, index, q, k, v, self._window))
        hidden += self._down(self._gate_up(backend.rms_norm(hidden, self._mlp_norm, self._eps)))

    def block(self) -> Block:
        """The layer's parts, for a backend that computes them as one. Of use where a rank is alone."""
        qkv, output, gate_up, down = self.linears
        return Block(
            self._input_norm, qkv, self._query_norm, self._key_norm, output,
            self._mlp_norm, gate_up, down, self._window,
        )  # fmt: skip


class Llama:
    """One rank's part of the model."""

    def __init__(
        self,
        spec: ModelSpec,
        source: Source,
        backend: Backend,
        dtype: torch.dtype,
        device: torch.device,
        shard: Shard,
        collective: Collective,
        packed: bool = False,
    ) -> None:
        """`packed` keeps matrices in 4 bit that the source holds so."""
        reader = _Reader(source, spec, shard, dtype, device, packed)
        self.spec = spec
        self.heads = spec.num_heads // shard.tp_size
        self.kv_heads = max(1, spec.num_kv_heads // shard.tp_size)
        self._backend = backend
        self._embedding = VocabParallelEmbedding(reader.rows("model.embed_tokens.weight"), shard, collective)
        self._layers = [
            Layer(index, reader, backend, collective, spec.window(index))
            for index in range(shard.first_layer, shard.last_layer)
        ]
        blocks = [layer.block() for layer in self._layers] if shard.tp_size == 1 else []
        self._fused = (
            backend.fuse(blocks, self.heads, self.kv_heads, spec.head_size, spec.rms_eps) if blocks else None
        )
        self._norm = reader.whole("model.norm.weight").float()  # so that its result is not rounded either
        head = self._embedding.weight if spec.tie_embeddings else reader.rows("lm_head.weight")
        self._head = VocabParallelHead(backend, head, collective)
        rope, self._rope_scale = frequencies(spec.rope, spec.head_size)
        self._frequencies = rope.to(device)

    @property
    def layers(self) -> int:
        return len(self._layers)

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Those of the first layer, which stand for all layers."""
        return self._layers[0].linears

    @property
    def matrix_bytes(self) -> int:
        """What a pass over all layers reads of their matrices."""
        return sum(linear.weight_bytes for layer in self._layers for linear in layer.linears)

    @property
    def head(self) -> Linear:
        return self._head.linears[0]

    def forward(self, tokens: Tensor, positions: Tensor, step: Any) -> Tensor:
        """Hidden states [T, H], float32, of tokens int32 [T] at positions int64 [T], after the last layer."""
        hidden = self._embedding(tokens).float()
        table = self._backend.rope_table(positions, self._frequencies, self._rope_scale)
        if self._fused is not None:
            self._fused(hidden, table, step)
            return hidden
        for index, layer in enumerate(self._layers):
            layer(index, hidden, table, step)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits float32 [R, vocabulary] of hidden states [R, H]."""
        return self._head(self._backend.rms_norm(hidden, self._norm, self.spec.rms_eps))
