"""Weights as the kernels read them, and the products with them."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from pillion.kernels.cpu import native
from pillion.kernels.cpu.cache import GROUP
from pillion.kernels.cpu.pool import Pool

SCALED = 64  # inputs that share a scale in int8


class Panels:
    """Weights [out, in] of one shape in panels of 16 outputs: theirs in turn, and an even number in all."""

    def __init__(
        self, library: ctypes.CDLL, weights: Sequence[Tensor], biases: Sequence[Tensor | None], scaled: bool
    ) -> None:
        """`scaled` makes them int8, else they are bfloat16."""
        turns, (outputs, inputs) = len(weights), weights[0].shape
        self.padding = 0 if scaled else inputs % 2  # bfloat16 inputs are taken in pairs
        own = -(-outputs // GROUP)
        panels = -(-own * turns // 2) * 2
        self._scale = None
        if scaled:
            groups = -(-inputs // SCALED)
            self._weight = torch.zeros(panels, groups * SCALED * GROUP, dtype=torch.uint8)
            self._scale = torch.zeros(panels, groups * GROUP, dtype=torch.bfloat16)
        else:
            self._weight = torch.zeros(panels, (inputs + self.padding) * GROUP, dtype=torch.bfloat16)
        self._bias = None if biases[0] is None else torch.zeros(panels, GROUP)
        for turn, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            plain = weight.contiguous()
            library.pillion_pack(
                *(plain.data_ptr(), outputs, inputs, turns, self._weight[turn].data_ptr()),
                None if self._scale is None else self._scale[turn].data_ptr(),
            )
            if self._bias is not None and bias is not None:
                padded = functional.pad(bias.float(), (0, own * GROUP - outputs))
                self._bias[turn : turn + own * turns : turns] = padded.view(own, GROUP)
        self.structure = native.Packed(
            self._weight.data_ptr(),
            *(None if part is None else part.data_ptr() for part in (self._scale, self._bias)),
            *(outputs, inputs + self.padding, panels),
        )
        self.pointer = ctypes.addressof(self.structure)

    def inputs(self, x: Tensor) -> Tensor:
        return functional.pad(x, (0, self.padding)) if self.padding else x.contiguous()


class PackedLinear:
    def __init__(
        self, library: ctypes.CDLL, pool: Pool, weight: Tensor, bias: Tensor | None, scaled: bool
    ) -> None:
        self.out_features, self.in_features = weight.shape
        self.panels = Panels(library, [weight], [bias], scaled)
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
        gate_bias: Tensor | None, up_bias: Tensor | None, scaled: bool,
    ) -> None:  # fmt: skip
        self.out_features, self.in_features = gate.shape
        self.panels = Panels(library, [gate, up], [gate_bias, up_bias], scaled)
        self._pool = pool
        self._call = library.pillion_gate_up

    def __call__(self, x: Tensor) -> Tensor:
        x = self.panels.inputs(x)
        out = x.new_empty(len(x), self.out_features)
        self._call(self._pool.pointer, self.panels.pointer, x.data_ptr(), len(x), out.data_ptr())
        return out


class ScaledHead:
    """Float32 logits of an int8 weight."""

    def __init__(self, library: ctypes.CDLL, pool: Pool, weight: Tensor) -> None:
        self.out_features, self.in_features = weight.shape
        self._panels = Panels(library, [weight], [None], scaled=True)
        self._pool = pool
        self._call = library.pillion_scaled_logits

    def __call__(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        out = x.new_empty(len(x), self.out_features)
        self._call(self._pool.pointer, self._panels.pointer, x.data_ptr(), len(x), out.data_ptr())
        return out


class Head:
    """Float32 logits of a bfloat16 weight as it is; one of an odd width is copied."""

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
