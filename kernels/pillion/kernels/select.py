"""Which backend runs: by what it can do, or as asked for; with the reason."""

from dataclasses import dataclass
from typing import Any

import torch

from pillion.kernels.cpu import CpuBackend, NoKernels
from pillion.kernels.interface import Backend, Capabilities
from pillion.kernels.reference import ReferenceBackend
from pillion.kernels.torch import TorchBackend

_BACKENDS: dict[str, type[Any]] = {
    "cpu": CpuBackend,
    "torch": TorchBackend,
    "reference": ReferenceBackend,
}  # best first


class NoBackend(ValueError):
    """No backend, or not the one asked for, runs this. The message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Selected:
    backend: Backend
    reason: str


def select(
    name: str,
    dtype: torch.dtype,
    device: torch.device,
    quantization: str = "none",
    kv_int8: bool = False,
) -> Selected:
    """`name` is `auto` or a backend's name. Raises NoBackend."""
    if name != "auto" and name not in _BACKENDS:
        raise NoBackend(f"there is no backend {name}; choose auto, {', '.join(_BACKENDS)}")
    lacks: list[str] = []
    unbuilt: list[str] = []
    for known, make in _BACKENDS.items():
        if name not in ("auto", known):
            continue
        lack = _lack(make.capabilities, dtype, device, quantization, kv_int8)
        if lack is None:
            try:
                backend: Backend = make(quantization)
            except NoKernels as error:
                unbuilt.append(f"the {known} kernels: {error}")
                continue
            reason = "asked for" if name != "auto" else _best(dtype, device, quantization)
            return Selected(backend, "; ".join([reason, *unbuilt]))
        lacks.append(f"{known} does not run {lack}")
    raise NoBackend(
        f"{'; '.join(lacks + unbuilt)}; "
        "choose another --backend, --dtype, --quantization, --kv-cache-dtype or --device"
    )


def _best(dtype: torch.dtype, device: torch.device, quantization: str) -> str:
    weights = "" if quantization == "none" else f" with {quantization} weights"
    return f"the best that runs {_name(dtype)}{weights} on {device.type}"


def _lack(
    capabilities: Capabilities, dtype: torch.dtype, device: torch.device, quantization: str, kv_int8: bool
) -> str | None:
    if device.type not in capabilities.devices:
        return f"on {device.type}"
    if quantization not in capabilities.quantizations:
        return f"{quantization} weights"
    if kv_int8 and not capabilities.kv_int8:
        return "an int8 KV cache"
    return None if dtype in capabilities.dtypes else _name(dtype)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
