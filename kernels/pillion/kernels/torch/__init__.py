"""Kernels made of torch's operators: CPU in bfloat16 and float32, CUDA tensors too."""

from pillion.kernels.torch.backend import TorchBackend

__all__ = ["TorchBackend"]
