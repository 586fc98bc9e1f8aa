"""Models for all tests: the demo model, and tiny random ones of every architecture in both kinds of file."""

import json
import logging
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from pillion.config import load
from pillion.modelfiles import Located, locate
from pillion.ops.role import SPINS

os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # for torch in this process, as the executor has it

pytest_plugins = ["tests.servers"]

# The same examples in every run, and none that fails because the machine was busy with something else.
settings.register_profile(
    "tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@pytest.fixture(autouse=True)
def _root_logger() -> Iterator[None]:
    """As it was before the test: a command that sets up logs in this process would quieten those after it."""
    logger = logging.getLogger()
    before, level = logger.handlers[:], logger.level
    yield
    logger.handlers[:] = before
    logger.setLevel(level)


@pytest.fixture(scope="session")
def demo() -> Located:
    """The demo model, fetched once into the user's models folder."""
    return locate("demo", cache_path=load().config.cache_path)


@pytest.fixture(scope="session")
def demo_gguf(demo: Located) -> Path:
    """The demo model's GGUF file."""
    return demo.path


@pytest.fixture(scope="session")
def demo_reference_tokenizer(demo_gguf: Path) -> Any:
    """The demo model's tokenizer as `transformers` makes it of the same file; slow to load."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(demo_gguf.parent, gguf_file=demo_gguf.name)


@dataclass(frozen=True)
class Recipe:
    """A tiny model: its classes' prefix in `transformers`, its kind in GGUF, and what its config says."""

    family: str
    gguf: str
    config: dict[str, Any] = field(default_factory=dict)


_SIZES = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 128,
}  # fmt: skip
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 256}

RECIPES = {
    "llama2": Recipe("Llama", "llama", {"num_key_value_heads": 4}),
    "llama3": Recipe("Llama", "llama", {"rope_parameters": _LLAMA3}),
    "smollm2": Recipe(
        "Llama",
        "llama",
        {"hidden_size": 96, "num_attention_heads": 3, "num_key_value_heads": 1, "tie_word_embeddings": True},
    ),
    "yi": Recipe("Llama", "llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e6}}),
    "mqa": Recipe("Llama", "llama", {"num_key_value_heads": 1}),
    "llama-biased": Recipe("Llama", "llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-linear": Recipe(
        "Llama", "llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}}
    ),
    "llama-yarn": Recipe("Llama", "llama", {"rope_parameters": _YARN, "max_position_embeddings": 1024}),
    "mistral": Recipe("Mistral", "llama", {"sliding_window": 24, "head_dim": 16}),
    "qwen2": Recipe("Qwen2", "qwen2", {"tie_word_embeddings": True}),
    "qwen2-sliding": Recipe(
        "Qwen2", "qwen2", {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}
    ),
    "qwen3": Recipe("Qwen3", "qwen3", {"head_dim": 32}),
}

TinyModel = Callable[..., Path]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """`tiny_model(name, kind="safetensors" | "gguf", weights="F32", shards=1, seed=0)` gives a path.

    Names are the keys of RECIPES (`tiny_model.names`). All weights are random, norms and biases too, so that
    no mistake hides behind a zero or a one. `weights` is the matrices' type, in GGUF a quantization too.
    """
    made: dict[tuple[Any, ...], Path] = {}

    def make(
        name: str, kind: str = "safetensors", *, weights: str = "F32", shards: int = 1, seed: int = 0
    ) -> Path:
        key = (name, kind, weights, shards, seed)
        if key not in made:
            target = tmp_path_factory.mktemp(f"{name}-{kind}-{weights}", numbered=True)
            made[key] = _write_gguf(name, target, weights, seed) if kind == "gguf" else target
            if kind == "safetensors":
                _write_folder(name, target, weights, shards, seed)
        return made[key]

    make.names = tuple(RECIPES)  # type: ignore[attr-defined]
    return make


def _model(name: str, seed: int) -> Any:
    """The random model, float32. The same for the same name and seed."""
    import torch
    import transformers

    recipe = RECIPES[name]
    config = getattr(transformers, f"{recipe.family}Config")(**(_SIZES | recipe.config))
    config.architectures = [f"{recipe.family}ForCausalLM"]
    model = getattr(transformers, f"{recipe.family}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in parameter_name:
                parameter.copy_(1.0 + 0.2 * noise)
            elif parameter.dim() == 1:
                parameter.copy_(0.3 * noise)
            else:
                parameter.copy_(
                    noise * (1.0 if "embed" in parameter_name else 1.5 / math.sqrt(parameter.shape[1]))
                )
    return model


def _write_folder(name: str, folder: Path, weights: str, shards: int, seed: int) -> None:
    import torch

    model = _model(name, seed).to(
        {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[weights]
    )
    total = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    model.save_pretrained(folder, max_shard_size=total if shards == 1 else total // shards)
    _tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIAL[0],
                "eos_token": SPECIAL[2], "pad_token": SPECIAL[0], "chat_template": CHATML,
                "clean_up_tokenization_spaces": False,
            }
        )
    )  # fmt: skip


def _tokenizer() -> Any:
    """All bytes and three special tokens; 259 of the models' 320 ids."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate(alphabet, start=len(SPECIAL))}
    vocabulary |= {text: number for number, text in enumerate(SPECIAL)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    return tokenizer


_GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def _gguf_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{_GGUF_NAMES[part]}.{kind}"
    return f"{_GGUF_NAMES[stem]}.{kind}"


def _write_gguf(name: str, folder: Path, weights: str, seed: int) -> Path:
    import numpy as np
    from gguf import GGMLQuantizationType, GGUFWriter, RopeScalingType, quants

    model, recipe, path = _model(name, seed), RECIPES[name], folder / f"{name}-{weights}.gguf"
    config = model.config
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer = GGUFWriter(path, recipe.gguf)
    writer.add_name(name)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_rope_dimension_count(head_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    if recipe.family == "Mistral":
        writer.add_sliding_window(config.sliding_window)
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", np.array(_llama3_divisors(rope, head_size), dtype=np.float32))
    _add_tokenizer(writer, config.vocab_size)
    for tensor_name, tensor in model.state_dict().items():
        if tensor_name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.numpy()
        heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads}
        for part, count in heads.items():
            if recipe.gguf == "llama" and f".{part}_proj." in tensor_name:
                halves = values.reshape(count, 2, values.shape[0] // count // 2, *values.shape[1:])
                values = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
        kind = GGMLQuantizationType[weights if values.ndim == 2 else "F32"]
        writer.add_tensor(_gguf_name(tensor_name), quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _llama3_divisors(rope: dict[str, Any], head_size: int) -> list[float]:
    """What converters write for Llama 3: by how much each frequency is divided."""
    original, low, high = (
        rope[key] for key in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    )
    divisors = []
    for index in range(0, head_size, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (index / head_size)
        if wavelength < original / high:
            divisors.append(1.0)
        elif wavelength > original / low:
            divisors.append(rope["factor"])
        else:
            smooth = (original / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return divisors


def _add_tokenizer(writer: Any, size: int) -> None:
    from gguf import TokenType

    tokenizer = _tokenizer()
    known = tokenizer.get_vocab_size()
    tokens = [tokenizer.id_to_token(number) for number in range(known)] + [
        f"[PAD{n}]" for n in range(known, size)
    ]
    types = [TokenType.CONTROL] * len(SPECIAL) + [TokenType.NORMAL] * (known - len(SPECIAL))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types + [TokenType.UNUSED] * (size - known))
    writer.add_token_merges([])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHATML)
