"""The oracle: each operation as its formula reads, in float32, one query at a time."""

from pillion.kernels.reference.backend import ReferenceBackend

__all__ = ["ReferenceBackend"]
