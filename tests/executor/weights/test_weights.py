"""Weights and specs of tiny models of every architecture, from both kinds of file, against `transformers`."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from pillion.executor.models.registry import read_spec
from pillion.executor.weights import open_weights
from pillion.executor.weights.four_bit import unpack
from pillion.modelfiles import ModelFileError, locate

NAMES = (
    "llama2", "llama3", "smollm2", "yi", "mqa", "llama-biased", "llama-linear", "llama-yarn", "mistral",
    "qwen2", "qwen2-sliding", "qwen3",
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
        "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_size",
        "vocab_size", "tie_embeddings", "qkv_bias", "output_bias", "mlp_bias", "qk_norm", "end_tokens",
        "torch_dtype",
    )  # fmt: skip
    for key in same:
        assert getattr(folder, key) == getattr(gguf, key), key
    assert folder.end_tokens == (2,)
    assert folder.rms_eps == pytest.approx(gguf.rms_eps, rel=1e-6)
    assert folder.rope.theta == gguf.rope.theta


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q4_K"])
def test_four_bits_stand_for_what_they_are_dequantized_to(kind):
    """Of random bytes: every pattern of numbers, scales and lowests."""
    made = GGMLQuantizationType[kind]
    block, size = GGML_QUANT_SIZES[made]
    raw = np.random.default_rng(1).integers(0, 256, (7, 3 * size), dtype=np.uint8)
    halves = raw.reshape(7, 3, size)[:, :, : 2 if kind == "Q4_0" else 4].reshape(7, 3, -1, 2)
    halves[..., 1] &= 0x3F  # scales that are numbers, and no giants
    expected = quants.dequantize(raw, made).astype(np.float64)
    matrix = unpack(raw, made)
    assert matrix.shape == expected.shape == (7, 3 * block)
    assert matrix.values.max() == 15 and matrix.values.min() == 0
    found = matrix.plain(torch.float64).numpy()
    bound = 2e-3 if kind == "Q4_K" else 1e-6  # products of scales are rounded to half floats
    assert np.abs(found - expected).max() < bound * np.abs(expected).max()
    assert unpack(raw, GGMLQuantizationType.Q8_0) is None


@pytest.mark.parametrize("name", ["llama2", "qwen3"])
def test_four_bits_come_in_the_order_of_the_tensors(tiny_model, name):
    located = locate(str(tiny_model(name, "gguf", weights="Q4_1")))
    packed = 0
    with open_weights(located, read_spec(located)) as weights:
        for tensor in weights:
            matrix = weights.four_bit(tensor)
            if matrix is not None:
                packed += 1
                assert torch.allclose(matrix.plain(torch.float32), weights.get(tensor), rtol=0, atol=1e-6)
    assert packed >= 21  # seven a layer


@pytest.mark.parametrize("quantization", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_quantized_tensors_are_near_what_went_in(tiny_model, quantization):
    located = locate(str(tiny_model("llama2", "gguf", weights=quantization)))
    bound = {"F16": 1e-3, "BF16": 5e-3, "Q8_0": 1e-2}.get(quantization, 0.15)
    expected = reference(tiny_model("llama2"))
    with open_weights(located, read_spec(located)) as weights:
        for name in weights:
            tensor = weights.get(name)
            assert tensor.dtype == torch.float32
            distance = (tensor - expected[name]).norm() / expected[name].norm()
            assert distance < bound
            # The type was really there: only the vectors stay exact.
            assert (distance.item() == 0) is (tensor.dim() == 1)


@pytest.mark.parametrize("shards", [1, 3])
def test_shards_are_read_as_one(tiny_model, shards):
    folder = tiny_model("llama2", shards=shards)
    assert len(list(folder.glob("*.safetensors"))) >= shards
    located = locate(str(folder))
    expected = reference(tiny_model("llama2"))
    with open_weights(located, read_spec(located)) as weights:
        assert all(torch.equal(weights.get(name), expected[name]) for name in weights)


def test_precision_is_the_files(tiny_model):
    located = locate(str(tiny_model("llama2", weights="BF16")))
    spec = read_spec(located)
    assert spec.torch_dtype == "bfloat16"
    with open_weights(located, spec) as weights:
        assert {weights.get(name).dtype for name in weights} == {torch.bfloat16}
        with pytest.raises(KeyError):
            weights.get("model.layers.9.mlp.up_proj.weight")


def copied(tiny_model, tmp_path, *arguments, **keywords):
    source = tiny_model(*arguments, **keywords)
    target = tmp_path / source.name
    return Path(shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target))


def refusal(path: Path) -> str:
    located = locate(str(path))
    with pytest.raises(ModelFileError) as caught:
        open_weights(located, read_spec(located))
    return str(caught.value)


def test_a_missing_shard_a_missing_file_and_no_weights_are_named(tiny_model, tmp_path):
    folder = copied(tiny_model, tmp_path, "llama2", shards=3)
    gone = sorted(folder.glob("*.safetensors"))[1]
    gone.unlink()
    assert gone.name in refusal(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../b.safetensors"}}')
    assert "outside its folder" in refusal(folder)
    (folder / "model.safetensors.index.json").unlink()
    assert "is missing" in refusal(folder)
    for path in folder.glob("*.safetensors"):
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"x")
    assert "convert it to safetensors" in refusal(folder)


@pytest.mark.parametrize("kept", [0, 4, 100, 5000, -1])
def test_truncated_safetensors_are_named(tiny_model, tmp_path, kept):
    file = copied(tiny_model, tmp_path, "llama2") / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    said = refusal(file.parent)
    assert "model.safetensors" in said
    assert "truncated" in said
    assert "fetch it again" in said


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (b"1.5", "no JSON object"),
        (b"[" * 100_000, "no JSON object"),
        (b'{"a": {"dtype": "F32", "shape": 3, "data_offsets": [0, 4]}}', "entry of tensor a is damaged"),
        (b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}', "entry of tensor a is damaged"),
        (b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}', "is no safetensors file: .*shape"),
        (b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}', "not fully covered"),
    ],
)
def test_a_hostile_safetensors_header_is_an_error_of_ours(tiny_model, tmp_path, header, said):
    file = copied(tiny_model, tmp_path, "llama2") / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))
    assert re.search(said, refusal(file.parent))


def test_a_damaged_safetensors_header_is_named(tiny_model, tmp_path):
    file = copied(tiny_model, tmp_path, "llama2") / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[8:12] = b"!!!!"
    file.write_bytes(content)
    assert "header is no JSON" in refusal(file.parent)


@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
def test_weights_of_another_model_are_named_with_both_shapes(tiny_model, kind):
    wide, deep = (locate(str(tiny_model(name, kind))) for name in ("llama2", "smollm2"))
    with pytest.raises(
        ModelFileError, match=r"shape \(320, 64\), but the configuration makes it \(320, 96\)"
    ):
        open_weights(wide, read_spec(deep))


def test_identity_names_the_content_not_the_place(tiny_model, tmp_path):
    def identity(path: Path) -> str:
        located = locate(str(path))
        with open_weights(located, read_spec(located)) as weights:
            return weights.identity

    for kind in ("safetensors", "gguf"):
        copy = copied(tiny_model, tmp_path, "llama2", kind)
        assert identity(copy) == identity(tiny_model("llama2", kind))
        assert identity(copy) != identity(tiny_model("llama2", kind, seed=1))


def test_tensors_outlive_the_files(tiny_model):
    for kind in ("safetensors", "gguf"):
        located = locate(str(tiny_model("llama2", kind)))
        with open_weights(located, read_spec(located)) as weights:
            tensor = weights.get("model.norm.weight")
        assert torch.equal(tensor, reference(tiny_model("llama2"))["model.norm.weight"])
