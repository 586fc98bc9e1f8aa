"""Weights and specs of tiny models of every architecture, from both kinds of file, against `transformers`."""

import shutil
from pathlib import Path

import pytest
import torch

from pillion.executor.models.registry import read_spec
from pillion.executor.weights import open_weights
from pillion.modelfiles import ModelFileError, locate

NAMES = (
    "llama2", "llama3", "smollm2", "yi", "mqa", "llama-biased", "llama-linear", "llama-yarn", "mistral", "qwen2",
    "qwen2-sliding", "qwen3",
)  # fmt: skip


def reference(folder: Path) -> dict[str, torch.Tensor]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    state = dict(model.state_dict())
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    return state


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
def test_every_tensor_is_the_checkpoints(tiny_model, name, kind):
    located = locate(str(tiny_model(name, kind)))
    spec = read_spec(located)
    expected = reference(tiny_model(name))
    with open_weights(located, spec) as weights:
        assert set(weights) == set(expected)
        for tensor in weights:
            assert torch.equal(weights.get(tensor).float(), expected[tensor]), tensor


@pytest.mark.parametrize("name", NAMES)
def test_both_kinds_of_file_describe_the_same_model(tiny_model, name):
    folder = read_spec(locate(str(tiny_model(name))))
    gguf = read_spec(locate(str(tiny_model(name, "gguf"))))
    same = (
        "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_size", "vocab_size",
        "tie_embeddings", "qkv_bias", "output_bias", "mlp_bias", "qk_norm", "end_tokens", "torch_dtype",
    )  # fmt: skip
    for key in same:
        assert getattr(folder, key) == getattr(gguf, key), key
    assert folder.end_tokens == (2,)
    assert folder.rms_eps == pytest.approx(gguf.rms_eps, rel=1e-6)
    assert folder.rope.theta == gguf.rope.theta
