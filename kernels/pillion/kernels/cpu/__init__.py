"""The `cpu` backend: our own kernels in C++, built once for the machine that they run on."""

from pillion.kernels.cpu.backend import CpuBackend
from pillion.kernels.cpu.native import NoKernels

__all__ = ["CpuBackend", "NoKernels"]
