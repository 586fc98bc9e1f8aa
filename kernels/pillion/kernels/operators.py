"""How long each operator of a backend takes, and what it computes and reads: for `pillion bench kernels`.

Weights and KV come from memory, as they do in a step, where all other layers' pass between two uses: a call
takes the next of copies that together are larger than the caches. Activations are in the caches and are not
counted, but for the operators that have nothing else.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pillion.kernels.interface import WISH, AttentionBatch, Backend, Block, CacheShape
from pillion.kernels.select import select

COLD = 256 << 20  # bytes of copies
MOST_COPIES = 1024
WEIGHT_BITS = {"none": 16.0, "int8": 8.5, "gguf": 8.5}  # here are no 4-bit weights
DECODES = 256  # rows up to which there are as many sequences
_DTYPE = torch.bfloat16
_CPU = torch.device("cpu")
_EPS = 1e-5


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of the model whose operators they are."""

    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    mlp: int
    vocabulary: int
    layers: int

    @property
    def query(self) -> int:
        return self.heads * self.head_size

    @property
    def key(self) -> int:
        return self.kv_heads * self.head_size


@dataclass(frozen=True, slots=True)
class Timing:
    """The median of several calls. `flops` are two a multiply-add."""

    name: str
    rows: int
    flops: int
    bytes: int
    int8: bool  # its products are of int8
    seconds: float
    calls: int


@dataclass(frozen=True, slots=True)
class Run:
    """One operator at one number of rows."""

    flops: int
    bytes: int
    call: Callable[[], object]
    int8: bool = False


@dataclass(frozen=True, slots=True)
class Bench:
    backend: Backend
    sizes: Sizes
    contexts: Sequence[int]
    quantization: str = "none"
    cold: int = COLD
    kv_int8: bool = False

    @property
    def int8(self) -> bool:
        return self.quantization != "none"

    def weights(self, elements: int) -> int:
        """The bytes of so many, scales included."""
        return int(elements * WEIGHT_BITS[self.quantization] / 8)


At = Callable[[int], Run | None]
"""The operator at so many rows; None where that is no case."""


def timings(bench: Bench, rows: Sequence[int], seconds: float) -> Iterator[Timing]:
    """Each operator at each number of rows, called for about so many seconds."""
    with torch.inference_mode():
        for prepare in OPERATORS:
            for name, at in prepare(bench):
                for count in rows:
                    if run := at(count):
                        times = _times(run.call, seconds)
                        median = statistics.median(times)
                        yield Timing(name, count, run.flops, run.bytes, run.int8, median, len(times))


def backend(
    name: str, threads: int, quantization: str = "none", kv_int8: bool = False
) -> tuple[Backend, str]:
    """By its name or `auto`, with so many threads, and why it is this one. Raises NoBackend."""
    torch.set_num_threads(threads)
    selected = select(name, _DTYPE, _CPU, quantization, kv_int8)
    return selected.backend, selected.reason


def _times(call: Callable[[], object], seconds: float) -> list[float]:
    """At least three calls after one that does not count; of very slow ones that one alone."""
    times: list[float] = []
    end = float("inf")
    while len(times) < 4 or time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
        if len(times) == 1:
            if times[0] > seconds:
                return times
            end = begin + times[0] + seconds
    return times[1:]


# --- the operators ---------------------------------------------------------------------------------

Prepared = Iterator[tuple[str, At]]


def _linears(bench: Bench) -> Prepared:
    sizes, backend = bench.sizes, bench.backend
    for name, inputs, outputs in (
        ("qkv", sizes.hidden, sizes.query + 2 * sizes.key),
        ("attention output", sizes.query, sizes.hidden),
        ("down", sizes.mlp, sizes.hidden),
    ):
        yield name, _product(bench, inputs, outputs, 1, backend.prepare_linear)
    yield (
        "gate and up",
        _product(
            bench, sizes.hidden, sizes.mlp, 2, lambda weight: backend.prepare_gate_up(weight, weight.clone())
        ),
    )
    yield (
        "head",
        _product(bench, sizes.hidden, sizes.vocabulary, 1, backend.prepare_logits, inputs_as=torch.float32),
    )


def _norm(bench: Bench) -> Prepared:
    weight = _noise(bench.sizes.hidden)

    def at(rows: int) -> Run:
        x = _noise(rows, bench.sizes.hidden, dtype=torch.float32)
        moved = x.nbytes + x.numel() * _DTYPE.itemsize
        return Run(4 * x.numel(), moved, lambda: bench.backend.rms_norm(x, weight, _EPS))

    yield "rms norm", at


def _rope(bench: Bench) -> Prepared:
    sizes, backend = bench.sizes, bench.backend

    def at(rows: int) -> Run:
        x = _noise(rows, sizes.heads + sizes.kv_heads, sizes.head_size)
        table = backend.rope_table(torch.arange(rows), _frequencies(sizes), 1.0)
        return Run(3 * x.numel(), x.nbytes + 4 * x.numel(), lambda: backend.rope(x, table))

    yield "rope", at


def _draw(bench: Bench) -> Prepared:
    """Read once at least, with one comparison a logit."""
    wishes = {
        "the likeliest": (0.0, 1.0, 0.0, 0.5, 0),
        "temperature 1": (1.0, 1.0, 0.0, 0.5, 0),
        "temperature 0.7, top-p 0.9": (0.7, 0.9, 0.0, 0.5, 0),
        "top-k 40": (1.0, 1.0, 0.0, 0.5, 40),
    }

    def at(rows: int, wish: tuple[float, ...]) -> Run | None:
        if rows > DECODES:
            return None
        logits = 4 * _noise(rows, bench.sizes.vocabulary, dtype=torch.float32)  # about as sure as a model is
        asked = np.array([wish] * rows, WISH)
        return Run(logits.numel(), logits.nbytes, lambda: bench.backend.draw(logits, asked))

    for name, wish in wishes.items():
        yield f"draw, {name}", partial(at, wish=wish)


def _attention(bench: Bench) -> Prepared:
    def at(rows: int, context: int, *, chunk: bool) -> Run | None:
        sequences = (_chunk if chunk else _decodes)(rows, context)
        return _attend(bench, sequences) if sequences else None

    for context in bench.contexts:
        yield f"attention, decodes at {context}", partial(at, context=context, chunk=False)
        yield f"attention, chunk at {context}", partial(at, context=context, chunk=True)


def _blocks(bench: Bench) -> Prepared:
    sizes, backend = bench.sizes, bench.backend

    def linear(inputs: int, outputs: int) -> Any:
        return backend.prepare_linear(_noise(outputs, inputs))

    blocks = [
        Block(
            input_norm=_noise(sizes.hidden),
            qkv=linear(sizes.hidden, sizes.query + 2 * sizes.key),
            query_norm=None,
            key_norm=None,
            output=linear(sizes.query, sizes.hidden),
            mlp_norm=_noise(sizes.hidden),
            gate_up=backend.prepare_gate_up(*(_noise(sizes.mlp, sizes.hidden) for _ in range(2))),
            down=linear(sizes.mlp, sizes.hidden),
            window=None,
        )
        for _ in range(sizes.layers)
    ]
    fused = backend.fuse(blocks, sizes.heads, sizes.kv_heads, sizes.head_size, _EPS)
    if fused is None:
        return
    matrices = sizes.hidden * (2 * sizes.query + 2 * sizes.key + 3 * sizes.mlp)

    def at(rows: int, context: int, *, chunk: bool) -> Run | None:
        sequences = (_chunk if chunk else _decodes)(rows, context)
        if not sequences:
            return None
        step = _step(bench, sequences, sizes.layers)
        attention = _attended(bench, sequences)
        hidden = _noise(rows, sizes.hidden, dtype=torch.float32)
        table = backend.rope_table(torch.arange(rows), _frequencies(sizes), 1.0)
        return Run(
            sizes.layers * (2 * rows * matrices + attention.flops),
            bench.weights(sizes.layers * matrices) + sizes.layers * attention.bytes,
            lambda: fused(hidden, table, step),
            bench.int8,
        )

    for context in bench.contexts:
        yield f"all blocks, decodes at {context}", partial(at, context=context, chunk=False)
        yield f"all blocks, chunk at {context}", partial(at, context=context, chunk=True)


OPERATORS: tuple[Callable[[Bench], Prepared], ...] = (_linears, _norm, _rope, _draw, _attention, _blocks)


# --- what they are made of -------------------------------------------------------------------------


def _noise(*size: int, dtype: torch.dtype = _DTYPE) -> Tensor:
    return torch.randn(*size, dtype=torch.float32).to(dtype)


def _frequencies(sizes: Sizes) -> Tensor:
    return 10000.0 ** (-torch.arange(0, sizes.head_size, 2) / sizes.head_size)


def _copies(bench: Bench, size: int) -> int:
    """Of so many bytes each, to be larger than the caches together."""
    return max(1, min(bench.cold // size, MOST_COPIES))


def _product(
    bench: Bench,
    inputs: int,
    outputs: int,
    weights: int,
    prepare: Callable[[Tensor], Callable[[Tensor], Tensor]],
    inputs_as: torch.dtype = _DTYPE,
) -> At:
    """With `weights` matrices [outputs, inputs]."""
    elements = weights * inputs * outputs
    plain = _noise(outputs, inputs)
    size = bench.weights(elements)
    copies = _copies(bench, size)
    turns = itertools.cycle([prepare(plain.clone()) for _ in range(copies)])

    def at(rows: int) -> Run:
        x = _noise(rows, inputs, dtype=inputs_as)
        return Run(2 * rows * elements, size, lambda: next(turns)(x), bench.int8)

    return at


Sequences = Sequence[tuple[int, int]]
"""Of each the tokens that are computed and those before."""


def _decodes(rows: int, context: int) -> Sequences:
    return [(1, context)] * rows if rows <= DECODES else []


def _chunk(rows: int, context: int) -> Sequences:
    return [(rows, context)] if rows > 1 else []


@dataclass(frozen=True, slots=True)
class Attended:
    flops: int
    bytes: int


def _attended(bench: Bench, sequences: Sequences) -> Attended:
    """Of one layer: both products over all pairs that the causal mask leaves, keys and values once."""
    sizes = bench.sizes
    pairs = sum(count * before + count * (count + 1) // 2 for count, before in sequences)
    keys = sum(count + before for count, before in sequences)
    return Attended(4 * sizes.query * pairs, keys * _cache(bench, 1, 1).position_bytes)


def _attend(bench: Bench, sequences: Sequences) -> Run:
    sizes, backend = bench.sizes, bench.backend
    work = _attended(bench, sequences)
    layers = _copies(bench, work.bytes)
    step = _step(bench, sequences, layers)
    rows = sum(count for count, _ in sequences)
    q = _noise(rows, sizes.heads, sizes.head_size, dtype=torch.float32)
    k = _noise(rows, sizes.kv_heads, sizes.head_size, dtype=torch.float32)
    v = _noise(rows, sizes.kv_heads, sizes.head_size)
    turns = itertools.cycle(range(layers))
    return Run(work.flops, work.bytes, lambda: backend.attention(step, next(turns), q, k, v))


def _step(bench: Bench, sequences: Sequences, layers: int) -> Any:
    """A step of the sequences, with keys and values of all tokens before in so many layers."""
    sizes, backend = bench.sizes, bench.backend
    size = backend.capabilities.block_size
    counts = [-(-(count + before) // size) for count, before in sequences]
    order = torch.randperm(sum(counts)).to(torch.int32) + 1  # blocks lie anywhere; 0 is never given out
    table = torch.zeros(len(counts), max(counts), dtype=torch.int32)
    for row, part in enumerate(order.split(counts)):
        table[row, : len(part)] = part
    cache = backend.allocate_cache(_cache(bench, layers, sum(counts) + 1))
    # Of a window of one, what was before costs little to write.
    history = [(before, 0) for _, before in sequences]
    if rows := sum(count for count, _ in history):
        step = backend.begin(cache, _batch(history, table, size), sizes.heads)
        q = _noise(rows, sizes.heads, sizes.head_size, dtype=torch.float32)
        k, v = (_noise(rows, sizes.kv_heads, sizes.head_size) for _ in range(2))
        for layer in range(layers):
            backend.attention(step, layer, q, k.float(), v, window=1)
    return backend.begin(cache, _batch(sequences, table, size), sizes.heads)


def _cache(bench: Bench, layers: int, blocks: int) -> CacheShape:
    sizes, block_size = bench.sizes, bench.backend.capabilities.block_size
    heads, size = sizes.kv_heads, sizes.head_size
    return CacheShape(layers, blocks, block_size, heads, size, _DTYPE, _CPU, bench.kv_int8)


def _batch(sequences: Sequences, table: Tensor, size: int) -> AttentionBatch:
    counts = [count for count, _ in sequences]
    lengths = [count + before for count, before in sequences]
    positions = torch.cat([torch.arange(before, before + count) for count, before in sequences])
    owner = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    return AttentionBatch(
        positions=positions,
        slot_mapping=table[owner, positions // size].long() * size + positions % size,
        cu_seqlens_q=torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32),
        seqused_k=torch.tensor(lengths, dtype=torch.int32),
        block_table=table,
        query_lens=counts,
        kv_lens=lengths,
    )
