"""Weights from safetensors folders, hub ids and GGUF files."""
