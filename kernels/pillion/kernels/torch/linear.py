"""Linear layers: oneDNN with a packed weight where that is faster, torch's own elsewhere."""

import torch
from torch import Tensor
from torch.nn import functional

from pillion.kernels.interface import Linear


class PlainLinear:
    """The weight as it is."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self.weight_bytes = weight.nbytes
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self._weight, self._bias)


class PackedLinear:
    """The weight in the layout that oneDNN computes in, so that no call has to reorder it."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self.weight_bytes = weight.nbytes
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
        self._bias = bias
        self._call = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor = self._call(x, self._weight, self._bias, "none", [], "")
        return result


class GateUp:
    """Both products as one, and what is made of them."""

    def __init__(self, both: Linear) -> None:
        self.out_features, self.in_features = both.out_features // 2, both.in_features
        self.weight_bytes = both.weight_bytes
        self._both = both

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self._both(x).chunk(2, -1)
        return functional.silu(gate).mul_(up)


PANEL = 2 << 20  # elements of the weight that are widened at a time: they stay in the cache


class PanelLinear:
    """Float32 products with a narrower weight, which is widened panel by panel and never held twice."""

    def __init__(self, weight: Tensor) -> None:
        self.out_features, self.in_features = weight.shape
        self.weight_bytes = weight.nbytes
        self._weight = weight
        self._rows = max(1, PANEL // self.in_features)
        self._panel: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        weight = self._weight
        if weight.dtype == torch.float32:
            return functional.linear(x, weight)
        if self._panel is None:
            size = (min(self._rows, self.out_features), self.in_features)
            self._panel = torch.empty(size, dtype=torch.float32, device=weight.device)
        result = torch.empty(len(x), self.out_features, dtype=torch.float32, device=x.device)
        for first in range(0, self.out_features, self._rows):
            part = weight[first : first + self._rows]
            panel = self._panel[: len(part)].copy_(part)
            torch.mm(x, panel.t(), out=result[:, first : first + len(part)])
        return result


def packable(weight: Tensor) -> bool:
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.bfloat16
        and torch._C._has_mkldnn
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )
