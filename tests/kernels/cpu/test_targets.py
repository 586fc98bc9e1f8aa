"""The kernels built for lesser processors than this one agree with those for it."""

from pathlib import Path

import numpy as np
import pytest
import torch

from pillion.kernels.interface import WISH
from tests.cpu_kernels import cpu_backend
from tests.kernels.cpu.test_bits import BF16, attend, noise

TARGETS = {"x86-64-v4": "AVX-512", "x86-64-v3": "AVX2", "x86-64": "portable"}  # by -march
NEEDS = {"x86-64-v4": "avx512vl", "x86-64-v3": "avx2", "x86-64": "sse2"}
HERE = [march for march, flag in NEEDS.items() if flag in Path("/proc/cpuinfo").read_text().split()]


@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("march", HERE)
def test_a_lesser_target_agrees(march, quantization):
    ours, other = cpu_backend(quantization), cpu_backend(quantization, march=march)
    assert other.target == TARGETS[march]
    weight, x = noise(1000, 130, seed=1).to(BF16), noise(50, 130, seed=2).to(BF16)
    q, k, v = noise(150, 6, 64, seed=1), noise(150, 2, 64, seed=2), noise(150, 2, 64, seed=3).to(BF16)
    table = ours.rope_table(torch.arange(150), 10000.0 ** -(torch.arange(32) / 32), 1.0)
    pairs = [
        (
            *(backend.prepare_linear(weight)(x), backend.prepare_logits(weight)(x.float())),
            *(
                backend.prepare_gate_up(weight[:500], weight[500:])(x),
                backend.rms_norm(x, weight[0], 1e-5),
                backend.rope(q, table),
            ),
            *(attend(backend, q, k, v, [150], None), attend(backend, q, k, v, [150], 70)),
        )
        for backend in (ours, other)
    ]
    for mine, theirs in zip(*pairs, strict=True):
        error = (mine.float() - theirs.float()).abs().max() / mine.float().abs().max()
        assert error < (1e-5 if mine.dtype == torch.float32 else 1e-2)
    whole = attend(other, q, k, v, [150], None)
    assert torch.equal(attend(other, q, k, v, [1, 16, 17, 64, 52], None), whole)


@pytest.mark.parametrize("march", HERE)
def test_a_lesser_target_draws_the_same(march):
    ours, other = cpu_backend(), cpu_backend(march=march)
    rows, numbers = 3 * noise(400, 1021, seed=4), np.random.default_rng(1)
    wishes = np.zeros(400, WISH)
    wishes["temperature"] = numbers.choice([0, 0.5, 1, 3], 400)
    wishes["top_p"] = numbers.choice([1.0, 0.9], 400)
    wishes["min_p"] = numbers.choice([0.0, 0.02], 400)
    wishes["top_k"] = numbers.choice([0, 40, 300], 400)
    wishes["uniform"] = numbers.random(400)
    mine, theirs = ours.draw(rows, wishes), other.draw(rows, wishes)
    assert len(set(mine.tolist())) > 200
    assert (mine == theirs).all()
