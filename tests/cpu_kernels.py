"""The kernels in C++, for tests on machines that may have no compiler."""

import shutil

import pytest

from pillion.kernels.cpu import CpuBackend
from pillion.kernels.cpu.native import COMPILERS


def cpu_backend(quantization: str = "none", *, march: str = "native") -> CpuBackend:
    """The backend; where there is no compiler the test is skipped, as users there are served by torch."""
    if not any(map(shutil.which, COMPILERS)):
        pytest.skip("no C++ compiler")
    return CpuBackend(quantization, march=march)
