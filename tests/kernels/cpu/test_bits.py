"""The same bits for every number of rows, every chunking, every count of threads."""

import itertools
import random

import numpy as np
import pytest
import torch

from pillion.kernels.interface import WISH, AttentionBatch, CacheShape
from tests.cpu_kernels import cpu_backend

BF16 = torch.bfloat16


def noise(*size, seed=0):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def with_threads(quantization="none"):
    """Backends, one for each count of threads."""
    before = torch.get_num_threads()
    made = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        made.append(cpu_backend(quantization))
    torch.set_num_threads(before)
    return made


@pytest.fixture(scope="module")
def backends():
    return with_threads()


@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize(("outputs", "inputs"), [(96, 64), (1000, 130)])
def test_each_row_of_a_product_stands_alone(quantization, outputs, inputs):
    backends = with_threads(quantization)
    weight, x = noise(outputs, inputs, seed=1).to(BF16), noise(120, inputs, seed=2).to(BF16)
    bias = noise(outputs, seed=3).to(BF16)
    whole = backends[0].prepare_linear(weight, bias)(x)
    gated = backends[0].prepare_gate_up(weight, -weight)(x)
    wide = backends[0].prepare_logits(weight)(x.float())
    for backend in backends:
        linear, head = backend.prepare_linear(weight, bias), backend.prepare_logits(weight)
        gate_up = backend.prepare_gate_up(weight, -weight)
        for count in (1, 2, 3, 5, 6, 7, 12, 47, 48, 49, 120):
            first = 120 - count
            assert torch.equal(linear(x[first:]), whole[first:])
            assert torch.equal(gate_up(x[first:]), gated[first:])
            assert torch.equal(head(x[first:].float()), wide[first:])


def attend(backend, q, k, v, chunks, window, block_size=16):
    """Attention of one sequence, computed chunk by chunk. Chunks are token counts."""
    length, heads, size = q.shape
    blocks = -(-length // block_size)
    shape = CacheShape(1, blocks + 1, block_size, k.shape[1], size, BF16, torch.device("cpu"))
    cache = backend.allocate_cache(shape)
    table = torch.arange(1, blocks + 1, dtype=torch.int32)[None]
    parts = []
    for begin, end in itertools.pairwise([0, *itertools.accumulate(chunks)]):
        positions = torch.arange(begin, end)
        batch = AttentionBatch(
            positions=positions,
            slot_mapping=table[0, positions // block_size].long() * block_size + positions % block_size,
            cu_seqlens_q=torch.tensor([0, end - begin], dtype=torch.int32),
            seqused_k=torch.tensor([end], dtype=torch.int32),
            block_table=table,
            query_lens=[end - begin],
            kv_lens=[end],
        )
        step = backend.begin(cache, batch, heads)
        parts.append(backend.attention(step, 0, q[begin:end], k[begin:end], v[begin:end], window).clone())
    return torch.cat(parts)


@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(6, 2, 64), (4, 4, 40), (7, 1, 128)])
def test_attention_is_the_same_for_every_chunking(backends, heads, kv_heads, size, window):
    length, drawn = 200, random.Random(1)
    q, k = noise(length, heads, size, seed=1), noise(length, kv_heads, size, seed=2)
    v = noise(length, kv_heads, size, seed=3).to(BF16)
    whole = attend(backends[0], q, k, v, [length], window)
    assert torch.isfinite(whole).all()
    for turn, backend in enumerate(backends * 2):
        chunks = [1] * length if turn == 0 else []
        while sum(chunks) < length:
            chunks.append(min(length - sum(chunks), drawn.choice([1, 2, 5, 15, 16, 17, 64, 90])))
        assert torch.equal(attend(backend, q, k, v, chunks, window), whole), chunks


@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_element_that_is_no_number_spoils_its_row_alone(quantization, bad):
    for backend in with_threads(quantization):
        weight = noise(80, 130, seed=5).to(BF16)
        for product, dtype in (
            (backend.prepare_linear(weight), BF16),
            (backend.prepare_logits(weight), torch.float32),
        ):
            x = noise(20, 130, seed=4).to(dtype)
            clean = product(x)
            x[7, 129] = bad
            out = product(x)
            assert not out[7].isfinite().any()
            keep = [row for row in range(20) if row != 7]
            assert torch.equal(out[keep], clean[keep])


def test_a_query_that_is_no_number_spoils_no_other(backends):
    for backend in backends:
        q, k = noise(40, 4, 64, seed=1), noise(40, 2, 64, seed=2)
        v = noise(40, 2, 64, seed=3).to(BF16)
        clean = attend(backend, q, k, v, [40], None)
        q[30] = torch.tensor(0x7FFFFFFF, dtype=torch.int32).view(torch.float32)  # rounds to -0, if one does
        out = attend(backend, q, k, v, [40], None)
        assert out[30].isnan().all()
        keep = [row for row in range(40) if row != 30]
        assert torch.equal(out[keep], clean[keep])


def test_threads_that_come_late_lose_and_double_no_work(backends):
    """Many short jobs back to back: each output is written, by its own job."""
    x = noise(1, 64, seed=6).to(BF16)
    weights = [noise(160, 64, seed=10 + n).to(BF16) for n in range(4)]
    for backend in backends:
        linears = [backend.prepare_linear(weight) for weight in weights]
        expected = [linear(x) for linear in linears]
        for turn in range(3000):
            assert torch.equal(linears[turn % 4](x), expected[turn % 4])


def test_a_draw_is_the_same_in_every_batch(backends):
    """To the last bit: each row draws on both sides of a border between tokens, one step of a float apart."""
    rows = noise(40, 3001, seed=7) * torch.tensor([1.0, 2.0, 4.0, 8.0]).repeat(10)[:, None]
    rows[::3] = rows[::3].round()  # many equal ones
    wishes = np.empty(40, WISH)
    for row, (temperature, top_k, top_p, min_p) in enumerate(
        itertools.islice(itertools.product([0.6, 1.0, 2.0], [0, 30, 2000], [1.0, 0.9], [0, 0.01, 0.2]), 40)
    ):
        wishes[row] = (temperature, top_p, min_p, 0.0, top_k)

    def draws(backend, uniforms, order=None):
        asked = wishes.copy()
        asked["uniform"] = uniforms
        order = list(range(40)) if order is None else order
        found = np.empty(40, np.int64)
        found[order] = backend.draw(rows[order], asked[order])
        return found

    low, high = np.zeros(40), np.full(40, 1 - 2**-53)
    first = draws(backends[0], low)
    while (high - low).max() > 2**-53:
        middle = np.where(high - low > 2**-53, np.floor((low + high) / 2 * 2**53) * 2**-53, low)
        same = draws(backends[0], middle) == first
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    assert (draws(backends[0], high) != first).sum() >= 30  # some rows keep one token alone
    drawn = random.Random(3)
    junk = torch.full((1, 9000), 3.0e38)
    for uniforms in (low, high):
        whole = draws(backends[0], uniforms)
        for backend in backends:
            for _ in range(5):
                order = drawn.sample(range(40), 40)
                assert (draws(backend, uniforms, order) == whole).all()
        asked = wishes.copy()
        asked["uniform"] = uniforms
        for row in range(40):
            backends[0].draw(junk, asked[:1])  # what a row leaves in memory is nothing to the next
            assert backends[0].draw(rows[row : row + 1], asked[row : row + 1]) == whole[row]
