"""What every backend must do, against formulas written out here in float64."""

import itertools
import math

import pytest
import torch

from pillion.kernels.cpu import CpuBackend
from pillion.kernels.cpu.cache import PagedCache
from pillion.kernels.interface import AttentionBatch, CacheShape
from pillion.kernels.reference import ReferenceBackend
from pillion.kernels.torch import TorchBackend
from tests.cpu_kernels import cpu_backend

CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


BACKENDS = {backend.name: backend for backend in (ReferenceBackend, TorchBackend, CpuBackend)}
DTYPES = [torch.float32, torch.bfloat16]
CLAIMED = [
    (name, dtype) for name, made in BACKENDS.items() for dtype in DTYPES if dtype in made.capabilities.dtypes
]


@pytest.fixture(scope="module", params=CLAIMED, ids=lambda pair: f"{pair[0]}-{str(pair[1])[6:]}")
def claimed(request):
    name, dtype = request.param
    return (cpu_backend() if name == "cpu" else BACKENDS[name]()), dtype


@pytest.fixture
def backend(claimed):
    return claimed[0]


@pytest.fixture
def dtype(claimed):
    return claimed[1]


def noise(*size, seed=0, dtype=torch.float32):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(ours, expected, dtype):
    assert ours.dtype in (dtype, torch.float32)
    assert torch.isfinite(ours).all()
    error = (ours.double() - expected).abs().max() / expected.abs().max()
    assert error < TOLERANCE[dtype]


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 33])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (17, 31), (96, 64)])
@pytest.mark.parametrize("biased", [False, True])
def test_linear(backend, dtype, rows, outputs, inputs, biased):
    weight, x = noise(outputs, inputs, seed=1, dtype=dtype), noise(rows, inputs, seed=2, dtype=dtype)
    bias = noise(outputs, seed=3, dtype=dtype) if biased else None
    linear = backend.prepare_linear(weight, bias)
    assert (linear.in_features, linear.out_features) == (inputs, outputs)
    expected = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
    ours = linear(x)
    assert ours.dtype == dtype
    close(ours, expected, dtype)


@pytest.mark.parametrize("rows", [1, 3, 33])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (17, 31), (5000, 577)])
def test_logits_are_float32(backend, dtype, rows, outputs, inputs):
    weight, x = noise(outputs, inputs, seed=1, dtype=dtype), noise(rows, inputs, seed=2)
    ours = backend.prepare_logits(weight)(x)
    assert ours.dtype == torch.float32
    close(ours, x.double() @ weight.double().t(), torch.float32)


@pytest.mark.parametrize("size", [1, 15, 64, 577])
def test_rms_norm(backend, dtype, size):
    x, weight = noise(5, size, seed=1) * 40, noise(size, seed=2, dtype=dtype)
    expected = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    ours = backend.rms_norm(x, weight, 1e-5)
    assert ours.dtype == dtype
    close(ours, expected, dtype)


@pytest.mark.parametrize("size", [2, 16, 80])
def test_rope(backend, dtype, size):
    positions = torch.tensor([0, 1, 7, 8191])
    frequencies = 10000.0 ** (-torch.arange(0, size, 2) / size)
    x = noise(4, 3, size, dtype=dtype)
    ours = backend.rope(x, backend.rope_table(positions, frequencies, 1.25))
    assert ours.dtype == torch.float32
    # Angles are rounded to float32 before the functions are taken, as in the checkpoints' training.
    angles = (positions[:, None].float() * frequencies).double()[:, None]
    even, odd = x.double()[..., 0::2], x.double()[..., 1::2]
    expected = torch.stack(
        [even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos()], -1
    )
    close(ours, expected.flatten(-2) * 1.25, torch.float32)


@pytest.mark.parametrize("rows", [1, 7, 33])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (17, 31), (96, 64)])
@pytest.mark.parametrize("biased", [False, True])
def test_gate_up(backend, dtype, rows, outputs, inputs, biased):
    weights = [noise(outputs, inputs, seed=seed, dtype=dtype) for seed in (1, 2)]
    biases = [noise(outputs, seed=seed, dtype=dtype) for seed in (3, 4)] if biased else []
    x = noise(rows, inputs, seed=5, dtype=dtype)
    linear = backend.prepare_gate_up(*weights, *biases)
    assert (linear.in_features, linear.out_features) == (inputs, outputs)
    gate, up = (x.double() @ weight.double().t() for weight in weights)
    if biased:
        gate, up = gate + biases[0].double(), up + biases[1].double()
    ours = linear(x)
    assert ours.dtype == dtype
    close(ours, gate / (1 + (-gate).exp()) * up, dtype)


# (query tokens, keys) by sequence, at and beside borders of blocks and spans.
BATCHES = {
    "one": [(1, 1)],
    "decodes": [(1, 1), (1, 31), (1, 32), (1, 33), (1, 127), (1, 128), (1, 129), (1, 300)],
    "first chunk": [(5, 5)],
    "later chunk": [(17, 90)],
    "long chunk": [(300, 411)],
    "mixed": [(1, 70), (1, 257), (1, 4), (16, 16), (33, 160), (1, 129), (131, 260)],
}
HEADS = [(4, 4, 16), (4, 2, 16), (9, 3, 64), (5, 1, 40)]  # heads, KV heads, head size


@pytest.mark.parametrize(("block_size", "window"), [(16, None), (48, 24), (256, 200), (32, 1)])
@pytest.mark.parametrize(("heads", "kv_heads", "size"), HEADS)
@pytest.mark.parametrize("lens", BATCHES.values(), ids=BATCHES.keys())
def test_attention(backend, dtype, lens, heads, kv_heads, size, block_size, window):
    if isinstance(backend, ReferenceBackend):
        lens = [(min(count, 3), keys) for count, keys in lens]  # it is slow: fewer queries
    check_attention(backend, dtype, lens, heads, kv_heads, size, block_size, window)


@pytest.mark.parametrize(("block_size", "window"), [(16, None), (48, 24)])
@pytest.mark.parametrize(("heads", "kv_heads", "size"), HEADS)
@pytest.mark.parametrize("lens", [BATCHES["decodes"], BATCHES["mixed"]], ids=["decodes", "mixed"])
def test_attention_over_int8(backend, dtype, lens, heads, kv_heads, size, block_size, window):
    if not backend.capabilities.kv_int8:
        assert isinstance(backend, TorchBackend)
        return
    if isinstance(backend, ReferenceBackend):
        lens = [(min(count, 3), keys) for count, keys in lens]
    check_attention(backend, dtype, lens, heads, kv_heads, size, block_size, window, int8=True)


def in_int8(x):
    """Numbers [n, heads, size] in float64, as a scale for each position and head leaves them."""
    scale = x.double().abs().amax(-1, keepdim=True) / 127
    return (x.double() / scale).round() * scale


def check_attention(backend, dtype, lens, heads, kv_heads, size, block_size, window, layer=1, int8=False):
    blocks = [-(-keys // block_size) for _, keys in lens]
    num_blocks = sum(blocks) + 4
    cache = backend.allocate_cache(CacheShape(2, num_blocks, block_size, kv_heads, size, dtype, CPU, int8))
    for tensor in (cache.all,) if isinstance(cache, PagedCache) else (cache.k, cache.v):
        spare = tensor[:, :, -1].clone() if isinstance(backend, TorchBackend) else None
        # Whatever is not written must not be seen: bytes of ones are no number in every float type.
        tensor.fill_(math.nan if tensor.is_floating_point() else 255)
        if spare is not None:
            tensor[:, :, -1] = spare
    order = torch.randperm(num_blocks - 1, generator=torch.Generator().manual_seed(9)) + 1
    table = torch.zeros(len(lens), max(blocks) + 1, dtype=torch.int32)
    for sequence, (first, count) in enumerate(zip(itertools.accumulate([0, *blocks]), blocks, strict=False)):
        table[sequence, :count] = order[first : first + count]

    keys = [noise(n, kv_heads, size, seed=10 + s, dtype=dtype) for s, (_, n) in enumerate(lens)]
    values = [noise(n, kv_heads, size, seed=50 + s, dtype=dtype) for s, (_, n) in enumerate(lens)]
    queries = [noise(n, heads, size, seed=90 + s) for s, (_, n) in enumerate(lens)]

    def run(query_lens, ends, padding):
        """The tokens before `ends`; `padding` rows more."""
        positions = torch.cat([torch.arange(e - n, e) for n, e in zip(query_lens, ends, strict=True)])
        sequence = torch.repeat_interleave(torch.arange(len(lens)), torch.tensor(query_lens))
        slots = table[sequence, positions // block_size].long() * block_size + positions % block_size
        pad = torch.zeros(padding, dtype=torch.int64)
        batch = AttentionBatch(
            positions=torch.cat([positions, pad]), slot_mapping=torch.cat([slots, pad]),
            cu_seqlens_q=torch.tensor([0, *itertools.accumulate(query_lens)], dtype=torch.int32),
            seqused_k=torch.tensor(ends, dtype=torch.int32), block_table=table,
            query_lens=query_lens, kv_lens=ends,
        )  # fmt: skip

        def rows(tensors):
            parts = [t[e - n : e] for t, n, e in zip(tensors, query_lens, ends, strict=True)]
            garbage = torch.full((padding, *tensors[0].shape[1:]), math.nan, dtype=tensors[0].dtype)
            return torch.cat([*parts, garbage])

        step = backend.begin(cache, batch, heads)
        q, k, v = rows(queries), rows(keys), rows(values)
        return backend.attention(step, layer, q, k, v, window), slots

    # What was computed before, in a step of its own whose outputs nobody reads.
    history = [length - count for count, length in lens]
    run(history, history, 0)
    out, slots = run([n for n, _ in lens], [n for _, n in lens], 3)
    total = sum(n for n, _ in lens)
    assert out.shape == (total + 3, heads * size)
    assert out.dtype == dtype

    share, expected = heads // kv_heads, []
    for sequence, (count, length) in enumerate(lens):
        held = in_int8 if int8 else torch.Tensor.double
        k = held(keys[sequence]).repeat_interleave(share, 1)
        v = held(values[sequence]).repeat_interleave(share, 1)
        scores = torch.einsum("qhd,khd->hqk", queries[sequence][-count:].double(), k) / size**0.5
        q_at, k_at = torch.arange(length - count, length)[:, None], torch.arange(length)
        hidden = (k_at > q_at) | (k_at <= q_at - (window or length + 1))
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
        expected.append(torch.einsum("hqk,khd->qhd", weights, v).flatten(1))
    close(out[:total], torch.cat(expected), dtype)
    written, _ = cache.read(layer, slots)
    new = torch.cat([k[length - n : length] for k, (n, length) in zip(keys, lens, strict=True)])
    other, _ = cache.read(1 - layer, slots)
    assert other.isnan().all()  # no other layer was touched
    if int8:
        close(written, in_int8(new), dtype)
        assert not torch.equal(written.double(), new.double())
    else:
        assert torch.equal(written, new)


def test_a_block_size_that_does_not_suit_is_refused():
    with pytest.raises(ValueError, match="--block-size"):
        TorchBackend().allocate_cache(CacheShape(1, 4, 24, 1, 16, torch.float32, CPU))
