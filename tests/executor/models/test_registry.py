"""config.json and GGUF metadata to the spec, in the forms of transformers 4 and 5."""

import json
import math

import pytest

from pillion.executor.models.registry import read_spec
from pillion.executor.models.spec import Rope
from pillion.modelfiles import Located, ModelFileError, locate

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 320, "max_position_embeddings": 512,
    "eos_token_id": 2,
}  # fmt: skip
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


def spec_of(path, **changes):
    config = {key: value for key, value in (LLAMA | changes).items() if value is not ...}
    (path / "config.json").write_text(json.dumps(config))
    return read_spec(Located("folder", path, "x"))


def test_defaults_are_those_of_the_class(tmp_path):
    spec = spec_of(tmp_path)
    assert (spec.num_kv_heads, spec.head_size, spec.rms_eps, spec.rope) == (4, 16, 1e-6, Rope(10000.0))
    assert not (spec.tie_embeddings or spec.qkv_bias or spec.mlp_bias or spec.qk_norm or spec.sliding_window)
    assert (spec.end_tokens, spec.max_position, spec.torch_dtype) == ((2,), 512, "bfloat16")
    assert spec_of(tmp_path, torch_dtype="float16").torch_dtype == "float16"
    assert spec_of(tmp_path, dtype="float32").torch_dtype == "float32"


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_rope_in_both_generations(tmp_path, key):
    def rope(scaling, **changes):
        four = key == "rope_scaling"
        spec = spec_of(
            tmp_path,
            **{key: scaling | ({} if four else {"rope_theta": 5e5}), "rope_theta": 5e5 if four else ...},
            **changes,
        )
        return spec.rope, spec.max_position

    assert rope({"rope_type": "llama3", **LLAMA3}) == (Rope(5e5, "llama3", 8.0, 1.0, 4.0, 128), 512)
    assert rope({"type": "linear", "factor": 4.0}) == (Rope(5e5, "linear", 4.0), 2048)
    assert rope({"rope_type": "default"}) == (Rope(5e5), 512)
    # Not scaled up to the trained length, and served no further.
    assert rope({"rope_type": "dynamic", "factor": 4.0}) == (Rope(5e5), 512)
    yarn, longest = rope({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512})
    assert (yarn.kind, yarn.factor, yarn.original_max_position, longest) == ("yarn", 4.0, 512, 2048)
    assert yarn.attention_factor == pytest.approx(0.1 * math.log(4) + 1)


def test_mistrals_window(tmp_path):
    mistral = {"architectures": ["MistralForCausalLM"], "num_key_value_heads": 2}
    assert spec_of(tmp_path, **mistral, sliding_window=24).sliding_window == 24
    assert spec_of(tmp_path, **mistral, sliding_window=None).sliding_window is None
    assert spec_of(tmp_path, **mistral).sliding_window == 4096


def test_qwens_layers_that_slide(tmp_path):
    qwen = {"architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 2, "sliding_window": 24}
    spec = spec_of(tmp_path, **qwen, use_sliding_window=True, max_window_layers=1)
    assert (spec.sliding_window, spec.sliding_layers, spec.qkv_bias) == (24, (False, True, True), True)
    kinds = ["sliding_attention", "full_attention", "full_attention"]
    assert spec_of(tmp_path, **qwen, use_sliding_window=True, layer_types=kinds).sliding_layers == (
        True,
        False,
        False,
    )
    assert spec_of(tmp_path, **qwen, use_sliding_window=False).sliding_window is None
    assert spec_of(tmp_path, **qwen, use_sliding_window=True, max_window_layers=28).sliding_window is None
    with pytest.raises(ModelFileError, match="layer_types"):
        spec_of(tmp_path, **qwen, use_sliding_window=True, layer_types=kinds[:2])


def test_qwen3_has_norms_and_its_own_head_size(tmp_path):
    qwen = {"architectures": ["Qwen3ForCausalLM"], "num_key_value_heads": 2}
    assert spec_of(tmp_path, **qwen).head_size == 128
    spec = spec_of(tmp_path, **qwen, head_dim=32)
    assert (spec.qk_norm, spec.head_size, spec.qkv_bias) == (True, 32, False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["MambaForCausalLM"]},
            "MambaForCausalLM is not supported; supported are LlamaForCausalLM,",
        ),
        ({"architectures": ...}, "architecture None is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act gelu"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq.*use the unquantized model, or a GGUF file"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "longrope is not supported; supported are"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "needs a positive low_freq_factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -1}}, "needs a positive factor"),
        ({"rope_scaling": "linear"}, "must be an object"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"hidden_size": 66}, "does not divide into 4 heads"),
        ({"num_key_value_heads": 3}, "4 heads do not divide into 3 KV heads"),
        ({"head_dim": 15}, "odd"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": 1 << 31}, "2147483648 layers; at most"),
        ({"rms_norm_eps": []}, r"needs a positive rms_norm_eps, not \[\]"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 1e308}}, "needs a positive factor, not 1e"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2, "mscale": "x"}}, "needs a positive mscale"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": "x"}, "sliding_window is 'x'"),
        ({"vocab_size": ...}, "vocab_size is None"),
    ],
)
def test_what_cannot_be_served_is_named(tmp_path, changes, message):
    with pytest.raises(ModelFileError, match=message) as caught:
        spec_of(tmp_path, **changes)
    assert str(tmp_path) in str(caught.value)


def test_gguf_of_llama3_carries_divisors(tiny_model):
    spec = read_spec(locate(str(tiny_model("llama3", "gguf"))))
    assert len(spec.rope.divisors) == spec.head_size // 2
    assert (spec.rope.kind, spec.rope.divisors[0], spec.rope.divisors[-1]) == ("none", 1.0, 8.0)
    assert len(set(spec.rope.divisors)) > 2


def test_gguf_of_mistral_yarn_and_linear(tiny_model):
    assert read_spec(locate(str(tiny_model("mistral", "gguf")))).sliding_window == 24
    linear = read_spec(locate(str(tiny_model("llama-linear", "gguf")))).rope
    assert (linear.kind, linear.factor) == ("linear", 2.0)
    folder, gguf = (
        read_spec(locate(str(tiny_model("llama-yarn", kind)))).rope for kind in ("safetensors", "gguf")
    )
    assert folder == gguf
    assert (gguf.kind, gguf.factor, gguf.original_max_position) == ("yarn", 4.0, 256)


def test_gguf_of_another_architecture_is_named(tmp_path):
    from gguf import GGUFWriter

    writer = GGUFWriter(tmp_path / "x.gguf", "gemma3")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(
        ModelFileError, match=r"x\.gguf: architecture gemma3 is not supported; supported are llama, qwen2"
    ):
        read_spec(Located("gguf", tmp_path / "x.gguf", "x"))
