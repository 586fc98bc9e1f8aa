"""All blocks in one call give the bits that the operators give one by one."""

import itertools

import pytest
import torch
from torch import Tensor

from pillion.kernels.cpu import CpuBackend
from pillion.kernels.interface import AttentionBatch, Block, CacheShape
from tests.cpu_kernels import cpu_backend
from tests.kernels.cpu.test_bits import BF16, noise

COUNTS, TOTALS = [1, 1, 40, 90], [70, 1, 40, 131]  # two decodes, a first chunk and a later one
BLOCK_SIZE = 16


@pytest.fixture(scope="module", params=["none", "int8"])
def backend(request):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield cpu_backend(request.param)
    torch.set_num_threads(before)


def make(backend: CpuBackend, seed: int, heads: int, kv_heads: int, size: int, **more: bool | int) -> Block:
    hidden, mlp = int(more.get("hidden", 80)), 200

    def weight(out: int, inputs: int, part: int) -> Tensor:
        return (noise(out, inputs, seed=seed * 100 + part) / inputs**0.5).to(BF16)

    def vector(width: int, part: int) -> Tensor:
        return (1 + 0.2 * noise(width, seed=seed * 100 + part)).to(BF16)

    def bias(width: int, part: int) -> Tensor | None:
        return vector(width, part) if more.get("biased") else None

    qkv = (heads + 2 * kv_heads) * size
    return Block(
        input_norm=vector(hidden, 1),
        qkv=backend.prepare_linear(weight(qkv, hidden, 2), bias(qkv, 3)),
        query_norm=vector(size, 4) if more.get("normed") else None,
        key_norm=vector(size, 5) if more.get("normed") else None,
        output=backend.prepare_linear(weight(hidden, heads * size, 6), bias(hidden, 7)),
        mlp_norm=vector(hidden, 8),
        gate_up=backend.prepare_gate_up(
            weight(mlp, hidden, 9), weight(mlp, hidden, 10), bias(mlp, 11), bias(mlp, 12)
        ),
        down=backend.prepare_linear(weight(hidden, mlp, 13), bias(hidden, 14)),
        window=int(more["window"]) if "window" in more else None,
    )


def one_by_one(backend, blocks, hidden, table, step, heads, kv_heads, size):
    for layer, block in enumerate(blocks):
        x = block.qkv(backend.rms_norm(hidden, block.input_norm, 1e-5)).unflatten(-1, (-1, size))
        q, k, v = x.split([heads, kv_heads, kv_heads], 1)
        if block.query_norm is not None:
            q, k = (backend.rms_norm(*pair, 1e-5) for pair in ((q, block.query_norm), (k, block.key_norm)))
        q, k = backend.rope(q, table), backend.rope(k, table)
        hidden += block.output(backend.attention(step, layer, q, k, v, block.window))
        hidden += block.down(block.gate_up(backend.rms_norm(hidden, block.mlp_norm, 1e-5)))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "more"),
    [
        (6, 2, 64, {}),
        (4, 4, 20, {"biased": True, "window": 30}),
        (5, 1, 32, {"normed": True, "hidden": 90}),
    ],
)
def test_blocks_give_the_bits_of_their_operators(backend, heads, kv_heads, size, more):
    blocks = [make(backend, seed, heads, kv_heads, size, **more) for seed in (1, 2, 3)]
    fused = backend.fuse(blocks, heads, kv_heads, size, 1e-5)
    assert fused is not None
    ends = list(itertools.accumulate(COUNTS))
    rows = ends[-1]
    positions = torch.cat(
        [torch.arange(total - count, total) for count, total in zip(COUNTS, TOTALS, strict=True)]
    )
    table = torch.zeros(len(COUNTS), 10, dtype=torch.int32)
    place = 1
    for index, total in enumerate(TOTALS):
        need = -(-total // BLOCK_SIZE)
        table[index, :need] = torch.arange(place, place + need)
        place += need
    sequence = torch.repeat_interleave(torch.arange(len(COUNTS)), torch.tensor(COUNTS))
    batch = AttentionBatch(
        positions=positions,
        slot_mapping=table[sequence, positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE,
        cu_seqlens_q=torch.tensor([0, *ends], dtype=torch.int32),
        seqused_k=torch.tensor(TOTALS, dtype=torch.int32),
        block_table=table,
        query_lens=COUNTS,
        kv_lens=TOTALS,
    )
    angles = backend.rope_table(positions, 10000.0 ** -(torch.arange(size // 2) / (size // 2)), 1.0)
    start = noise(rows, len(blocks[0].input_norm), seed=9)
    found = []
    for run in ("fused", "one by one"):
        cache = backend.allocate_cache(
            CacheShape(3, place, BLOCK_SIZE, kv_heads, size, BF16, torch.device("cpu"))
        )
        cache.numbers.copy_(noise(*cache.numbers.shape, seed=11))  # of the earlier positions
        step = backend.begin(cache, batch, heads)
        hidden = start.clone()
        if run == "fused":
            fused(hidden, angles, step)
        else:
            one_by_one(backend, blocks, hidden, angles, step, heads, kv_heads, size)
        found.append((hidden, cache.all))
    assert torch.isfinite(found[0][0]).all() and not torch.equal(found[0][0], start)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*found, strict=True))


def test_blocks_whose_inputs_need_padding_are_left_to_the_operators():
    backend = cpu_backend()
    assert backend.fuse([make(backend, 1, 3, 1, 16, hidden=33)], 3, 1, 16, 1e-5) is None
