"""Weights of a model from safetensors or GGUF files."""

from pillion.executor.weights.weights import Weights, open_weights

__all__ = ["Weights", "open_weights"]
