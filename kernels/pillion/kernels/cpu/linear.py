"""Weights as the kernels read them, and the products with them."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from pillion.kernels.cpu import native
from pillion.kernels.cpu.cache import GROUP
from pillion.kernels.cpu.pool import Pool
from pillion.kernels.four_bit import BLOCK, FourBit, Weight, plain

HALVES, BYTES, NIBBLES = range(3)  # `pillion::Packed::Form`


class Panels:
    """Weights [out, in] of one shape in panels of 16 outputs: theirs in turn, and an even number in all."""

    def __init__(
        self, library: ctypes.CDLL, weights: Sequence[Weight], biases: Sequence[Tensor | None], scaled: bool
    ) -> None:
        """`scaled` makes them int8 where they are not in 4 bit; else they are bfloat16."""
        turns, (outputs, inputs) = len(weights), weights[0].shape
        own = -(-outputs // GROUP)
        panels = -(-own * turns // 2) * 2
        packed = [weight for weight in weights if isinstance(weight, FourBit)]
        if packed and len(packed) < turns:
            weights, packed = [plain(weight, torch.bfloat16) for weight in weights], []
        form = NIBBLES if packed else BYTES if scaled else HALVES
        self.padding = inputs % 2 if form == HALVES else 0  # bfloat16 inputs are taken in pairs
        groups = -(-inputs // BLOCK)
        self._weight = {
            HALVES: lambda: torch.zeros(panels, (inputs + self.padding) * GROUP, dtype=torch.bfloat16),
            BYTES: lambda: torch.zeros(panels, groups * BLOCK * GROUP, dtype=torch.uint8),
            NIBBLES: lambda: torch.zeros(panels, groups * BLOCK * GROUP // 2, dtype=torch.uint8),
        }[form]()
        # Their scales, and what zero stands for; 16 bits each.
        count = {HALVES: 0, BYTES: 1, NIBBLES: 2}[form]
        self._scales = [torch.zeros(panels, groups * GROUP, dtype=torch.float16) for _ in range(count)]
        self._bias = None if biases[0] is None else torch.zeros(panels, GROUP)
        for turn, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            to = [part[turn].data_ptr() for part in (self._weight, *self._scales)]
            if isinstance(weight, FourBit):
                parts = [part.contiguous() for part in (weight.values, weight.scales, weight.lowest)]
                pointers = [part.data_ptr() for part in parts]
                library.pillion_pack_nibbles(*pointers, outputs, inputs, turns, *to)
            else:
                part = weight.to(torch.bfloat16).contiguous()
                library.pillion_pack(
                    *(part.data_ptr(), outputs, inputs, turns, to[0]), to[1] if scaled else None
                )
            if self._bias is not None and bias is not None:
                padded = functional.pad(bias.float(), (0, own * GROUP - outputs))
                self._bias[turn : turn + own * turns : turns] = padded.view(own, GROUP)
        self.bytes = self._weight.nbytes + sum(scale.nbytes for scale in self._scales)
        pointers = [scale.data_ptr() for scale in self._scales]
        self.structure = native.Packed(
            *(self._weight.data_ptr(), *pointers, *(None for _ in range(2 - count))),
            None if self._bias is None else self._bias.data_ptr(),
            *(outputs, inputs + self.padding, panels, form),
        )
        self.pointer = ctypes.addressof(self.structure)

    def inputs(self, x: Tensor) -> Tensor:
        return functional.pad(x, (0, self.padding)) if self.padding else x.contiguous()


class PackedLinear:
    def __init__(
        self, library: ctypes.CDLL, pool: Pool, weight: Weight, bias: Tensor | None, scaled: bool
    ) -> None:
        self.out_features, self.in_features = weight.shape
        self.panels = Panels(library, [weight], [bias], scaled)
        self.weight_bytes = self.panels.bytes
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
        self, library: ctypes.CDLL, pool: Pool, gate: Weight, up: Weight,
        gate_bias: Tensor | None, up_bias: Tensor | None, scaled: bool,
    ) -> None:  # fmt: skip
        self.out_features, self.in_features = gate.shape
        self.panels = Panels(library, [gate, up], [gate_bias, up_bias], scaled)
        self.weight_bytes = self.panels.bytes
        self._pool = pool
        self._call = library.pillion_gate_up

    def __call__(self, x: Tensor) -> Tensor:
        x = self.panels.inputs(x)
        out = x.new_empty(len(x), self.out_features)
        self._call(self._pool.pointer, self.panels.pointer, x.data_ptr(), len(x), out.data_ptr())
        return out


class ScaledHead:
    """Float32 logits of an int8 weight, with activations as int8 or as that and what it lost of them."""

    def __init__(self, library: ctypes.CDLL, pool: Pool, weight: Tensor, parts: int) -> None:
        self.out_features, self.in_features = weight.shape
        self._panels = Panels(library, [weight], [None], scaled=True)
        self.weight_bytes = self._panels.bytes
        self._pool = pool
        self._call = library.pillion_scaled_logits
        self._parts = parts

    def __call__(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        out = x.new_empty(len(x), self.out_features)
        self._call(
            self._pool.pointer, self._panels.pointer, x.data_ptr(), len(x), out.data_ptr(), self._parts
        )
        return out


class Head:
    """Float32 logits of a bfloat16 weight as it is; one of an odd width is copied."""

    def __init__(self, library: ctypes.CDLL, pool: Pool, weight: Tensor) -> None:
        self.out_features, self.in_features = weight.shape
        self._padding = -self.in_features % (2 * GROUP)
        self._pool = pool
        self._weight = self._padded(weight)
        self.weight_bytes = self._weight.nbytes
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
