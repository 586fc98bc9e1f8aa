"""The threads that the kernels share."""

import ctypes

from pillion.kernels.cpu import native


class Pool:
    """Freed with its last user."""

    def __init__(self, library: ctypes.CDLL, threads: int) -> None:
        """Raises NoKernels."""
        self._free = library.pillion_pool_free
        self.pointer = library.pillion_pool(threads)
        if self.pointer is None:
            raise native.NoKernels(f"the system does not give {threads} threads; lower --threads")

    def __del__(self) -> None:
        if self.pointer is not None:
            self._free(self.pointer)
