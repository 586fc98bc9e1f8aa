"""Weights in int8 and 4 bit: what is computed, against the definition in float64; how near it comes."""

import pytest
import torch
from torch import Tensor

from pillion.kernels.four_bit import FourBit, join
from tests.cpu_kernels import cpu_backend
from tests.kernels.cpu.test_bits import BF16, noise

GROUP = 32


def groups(x: Tensor) -> Tensor:
    return torch.nn.functional.pad(x, (0, -x.shape[1] % GROUP)).unflatten(1, (-1, GROUP)).double()


def as_int8(x: Tensor, scale: Tensor) -> Tensor:
    """The numbers that int8 with these scales stands for, by groups."""
    return (x / scale.clamp_min(1e-30)[..., None]).round().clamp(-127, 127) * scale[..., None]


def weights_as_int8(weight: Tensor) -> Tensor:
    values = groups(weight.float())
    return as_int8(values, (values.abs().amax(2) / 127).to(BF16).double())


def inputs_as_int8(x: Tensor) -> Tensor:
    values = groups(x.float())
    return as_int8(values, values.abs().amax(2) / 127)


def product(x: Tensor, weight: Tensor) -> Tensor:
    return torch.einsum("rgi,ogi->ro", inputs_as_int8(x), weights_as_int8(weight))


def error(ours: Tensor, expected: Tensor) -> float:
    assert torch.isfinite(ours).all()
    return float((ours.double() - expected).abs().max() / expected.abs().max())


@pytest.fixture(scope="module")
def backend():
    return cpu_backend("int8")


@pytest.mark.parametrize("rows", [1, 5, 6, 7, 50])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (17, 31), (96, 64), (33, 65), (40, 577)])
def test_products(backend, rows, outputs, inputs):
    weights = [noise(outputs, inputs, seed=seed).to(BF16) for seed in (1, 2)]
    biases = [noise(outputs, seed=seed).to(BF16) for seed in (3, 4)]
    x = noise(rows, inputs, seed=5).to(BF16) * 3
    whole, gate, up = (
        backend.prepare_linear(weights[0], biases[0])(x),
        *(product(x, weight) + bias.double() for weight, bias in zip(weights, biases, strict=True)),
    )
    assert whole.dtype == BF16
    assert error(whole, gate) < 4e-3
    assert error(backend.prepare_gate_up(*weights, *biases)(x), gate / (1 + (-gate).exp()) * up) < 1e-2
    wide = noise(rows, inputs, seed=6)
    logits = backend.prepare_logits(weights[0])(wide)
    assert logits.dtype == torch.float32
    assert error(logits, product(wide, weights[0])) < 1e-5


def test_what_is_lost_by_eight_bits_is_small(backend):
    weight, x = noise(300, 577, seed=1).to(BF16), noise(40, 577, seed=2)
    x[:, 70] *= 50  # one channel far above the others, as trained models have them, costs its group alone
    expected = x.double() @ weight.double().t()
    ours = backend.prepare_logits(weight)(x)
    lost = (ours.double() - expected).pow(2).mean().sqrt() / expected.pow(2).mean().sqrt()
    assert 0 < lost < 0.015  # 0.04 with one scale a row


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_logits_beside_four_bit_lose_only_what_the_weight_does(rows):
    weight, x = noise(300, 577, seed=1).to(BF16), noise(rows, 577, seed=2)
    head = cpu_backend("gguf").prepare_logits(weight)
    held = cpu_backend("int8").prepare_logits(weight)(torch.eye(577)).double()  # its columns as they became
    assert error(head(x), x.double() @ held) < 5e-5  # 5e-3 with the activations in one part
    whole = head(x)
    assert all(torch.equal(head(x[row : row + 1])[0], whole[row]) for row in range(rows))


def test_a_weight_of_zeros_and_inputs_of_zeros_give_zeros(backend):
    weight = noise(40, 130, seed=1).to(BF16)
    weight[3] = 0
    x = noise(4, 130, seed=2)
    x[2] = 0
    ours = backend.prepare_logits(weight)(x)
    assert not ours[:, 3].any() and not ours[2].any() and ours[0].any()


def four_bit(outputs: int, inputs: int, seed: int) -> FourBit:
    drawn = torch.Generator().manual_seed(seed)
    return FourBit(
        torch.randint(0, 16, (outputs, inputs), generator=drawn, dtype=torch.uint8),
        (0.01 + 0.02 * torch.rand(outputs, inputs // 32, generator=drawn)).half(),
        -(0.05 + 0.2 * torch.rand(outputs, inputs // 32, generator=drawn)).half(),
    )


@pytest.mark.parametrize("rows", [1, 5, 6, 7, 50])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 32), (17, 64), (96, 96), (40, 576)])
def test_products_of_four_bit(rows, outputs, inputs):
    backend = cpu_backend("gguf")
    weights = [four_bit(outputs, inputs, seed) for seed in (1, 2)]
    biases = [noise(outputs, seed=seed).to(BF16) for seed in (3, 4)]
    x = noise(rows, inputs, seed=5).to(BF16) * 3
    taken = inputs_as_int8(x).flatten(1)
    gate, up = (
        taken @ weight.plain(torch.float64).t() + bias.double()
        for weight, bias in zip(weights, biases, strict=True)
    )
    linear = backend.prepare_linear(weights[0], biases[0])
    assert linear.weight_bytes == -(-outputs // 32) * 32 * inputs * 5 // 8
    assert error(linear(x), gate) < 4e-3
    assert error(backend.prepare_gate_up(*weights, *biases)(x), gate / (1 + (-gate).exp()) * up) < 1e-2
    whole = linear(x)
    assert all(torch.equal(linear(x[row : row + 1])[0], whole[row]) for row in range(rows))


def test_four_bit_beside_other_weights_becomes_plain():
    first, second = four_bit(16, 64, 1), four_bit(8, 64, 2)
    both = join([first, second], BF16)
    assert isinstance(both, FourBit) and both.shape == (24, 64)
    assert torch.equal(both.plain(BF16), torch.cat([first.plain(BF16), second.plain(BF16)]))
    mixed = join([first, noise(8, 64).to(BF16)], BF16)
    assert isinstance(mixed, Tensor) and torch.equal(mixed[:16], first.plain(BF16))
    backend = cpu_backend("gguf")
    x = noise(3, 64, seed=3).to(BF16)
    mixed_up = backend.prepare_gate_up(first, first.plain(BF16))(x)
    plain_up = backend.prepare_gate_up(first.plain(BF16), first.plain(BF16))(x)
    assert torch.equal(mixed_up, plain_up)
