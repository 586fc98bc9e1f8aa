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


def select(name: str, dtype: torch.dtype, device: torch.device) -> Selected:
    """`name` is `auto` or a backend's name. Raises NoBackend."""
    if name != "auto" and name not in _BACKENDS:
        raise NoBackend(f"there is no backend {name}; choose auto, {', '.join(_BACKENDS)}")
    lacks: list[str] = []
    unbuilt: list[str] = []
    for known, make in _BACKENDS.items():
        if name not in ("auto", known):
            continue
        lack = _lack(make.capabilities, dtype, device)
        if lack is None:
            try:
                backend: Backend = make()
            except NoKernels as error:
                unbuilt.append(f"the {known} kernels: {error}")
                continue
            reason = "asked for" if name != "auto" else f"the best that runs {_name(dtype)} on {device.type}"
            return Selected(backend, "; ".join([reason, *unbuilt]))
        lacks.append(f"{known} does not run {lack}")
    raise NoBackend(f"{'; '.join(lacks + unbuilt)}; choose another --backend, --dtype or --device")


def _lack(capabilities: Capabilities, dtype: torch.dtype, device: torch.device) -> str | None:
    if device.type not in capabilities.devices:
        return f"on {device.type}"
    return None if dtype in capabilities.dtypes else _name(dtype)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
