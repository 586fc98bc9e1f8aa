"""Weights as the kernels read them, and the products with them."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from pillion.kernels.cpu import native
from pillion.kernels.cpu.cache import GROUP
from pillion.kernels.cpu.pool import Pool


class Panels:
    """Bfloat16 weights [out, in] of one shape: their panels of 16 outputs in turn, an even number in all."""

    def __init__(
        self, library: ctypes.CDLL, weights: Sequence[Tensor], biases: Sequence[Tensor | None]
    ) -> None:
        self.outputs, inputs = weights[0].shape
        self.odd = inputs % 2  # inputs are taken in pairs
        inputs += self.odd
        own = -(-self.outputs // GROUP)
        panels = -(-own * len(weights) // 2) * 2
        self._weight = torch.zeros(panels, inputs * GROUP, dtype=torch.bfloat16)
        self._bias = None if biases[0] is None else torch.zeros(panels, GROUP)
        for first, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            plain = functional.pad(weight, (0, self.odd)).contiguous()
            library.pillion_pack(
                *(plain.data_ptr(), self.outputs, inputs, len(weights), self._weight[first].data_ptr())
            )
            if self._bias is not None and bias is not None:
                padded = functional.pad(bias.float(), (0, own * GROUP - self.outputs))
                self._bias[first : first + own * len(weights) : len(weights)] = padded.view(own, GROUP)
        self.structure = native.Packed(
            self._weight.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(),
            self.outputs,
            inputs,
        )
        self.pointer = ctypes.addressof(self.structure)

    def inputs(self, x: Tensor) -> Tensor:
        return functional.pad(x, (0, 1)) if self.odd else x.contiguous()


class PackedLinear:
    def __init__(self, library: ctypes.CDLL, pool: Pool, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self.panels = Panels(library, [weight], [bias])
        self._pool = pool
        self._call = library.pillion_linear

    def __call__(self, x: Tensor) -> Tensor:
        x = self.panels.inputs(x)
        out = x.new_empty(len(x), self.out_features)
        self._call(self._pool.pointer, self.panels.pointer, x.data_ptr(), len(x), out.data_ptr())
        return out


class GateUp:
    """The two weights' panels alternate: what meets in an output is computed side by side."""

    def __init__(
        self, library: ctypes.CDLL, pool: Pool, gate: Tensor, up: Tensor,
        gate_bias: Tensor | None, up_bias: Tensor | None,
    ) -> None:  # fmt: skip
        self.out_features, self.in_features = gate.shape
        self.panels = Panels(library, [gate, up], [gate_bias, up_bias])
        self._pool = pool
        self._call = library.pillion_gate_up

    def __call__(self, x: Tensor) -> Tensor:
        x = self.panels.inputs(x)
        out = x.new_empty(len(x), self.out_features)
        self._call(self._pool.pointer, self.panels.pointer, x.data_ptr(), len(x), out.data_ptr())
        return out


class Head:
    """Float32 products with a bfloat16 weight as it is; one of an odd width is copied."""

    def __init__(self, library: ctypes.CDLL, pool: Pool, weight: Tensor) -> None:
        self.out_features, self.in_features = weight.shape
        self._padding = -self.in_features % (2 * GROUP)
        self._pool = pool
        self._weight = self._padded(weight)
        self._call = library.pillion_logits

    def _padded(self, x: Tensor) -> Tensor:
        return functional.pad(x, (0, self._padding)) if self._padding else x.contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        x = self._padded(x)
        out = x.new_empty(len(x), self.out_features)
        self._call(
            *(self._pool.pointer, self._weight.data_ptr(), *self._weight.shape),
            *(x.data_ptr(), len(x), out.data_ptr()),
        )
        return out
