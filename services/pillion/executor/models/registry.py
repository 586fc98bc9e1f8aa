"""Which architectures are served, and how each kind of file describes them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pillion.executor.models.spec import ModelSpec, Rope
from pillion.modelfiles import Located, ModelFileError, special_tokens
from pillion.modelfiles.gguf import GgufFile
from pillion.modelfiles.texts import read_json


def read_spec(located: Located) -> ModelSpec:
    """What the model is made of, from config.json or from a GGUF file's metadata. Raises ModelFileError."""
    path = located.path if located.kind == "gguf" else located.path / "config.json"
    try:
        spec = _from_gguf(path) if located.kind == "gguf" else _from_config(path)
    except ModelFileError:
        raise
    except (TypeError, ValueError, KeyError, ArithmeticError) as error:
        raise ModelFileError(f"{path}: a setting of the wrong kind ({str(error)[:200]})") from None
    _check(spec, located.path)
    return replace(spec, end_tokens=tuple(t for t in special_tokens(located).end_ids if t < spec.vocab_size))


MOST_LAYERS = 2048  # so that a damaged number is an error, and no list without end
MOST_SIZE = 1 << 30  # of any other count
MOST = 1e15  # of a real number: products with lengths stay finite
_SIZES = (
    "hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_size", "vocab_size",
    "max_position",
)  # fmt: skip


def _check(spec: ModelSpec, path: Path) -> None:
    if spec.num_layers > MOST_LAYERS:
        raise ModelFileError(f"{path}: {spec.num_layers} layers; at most {MOST_LAYERS} are served")
    sizes = {name: getattr(spec, name) for name in _SIZES} | {"sliding_window": spec.sliding_window or 1}
    for name, size in sizes.items():
        if not 1 <= size <= MOST_SIZE:
            raise ModelFileError(f"{path}: {name} is {str(size)[:40]}, it must be 1 to {MOST_SIZE}")
    if not all(0 < divisor < MOST for divisor in spec.rope.divisors or ()):
        raise ModelFileError(f"{path}: tensor rope_freqs.weight holds what are no positive numbers")
    if spec.num_heads % spec.num_kv_heads:
        raise ModelFileError(
            f"{path}: {spec.num_heads} heads do not divide into {spec.num_kv_heads} KV heads"
        )
    if spec.head_size % 2:
        raise ModelFileError(
            f"{path}: the head size {spec.head_size} is odd, which rotary embeddings cannot be"
        )


def _positive(value: Any, where: str, key: str) -> float:
    """Raises ModelFileError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < MOST:
        raise ModelFileError(f"{where} needs a positive {key}, not {value!r}")
    return float(value)


# -- config.json


class _Config:
    """config.json with typed access; an absent key means the default of the class in `transformers`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values = read_json(path)

    def get(self, key: str, default: Any = None) -> Any:
        value = self.values.get(key)
        return default if value is None else value

    def size(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelFileError(f"{self.path}: {key} is {value!r}, it must be a positive integer")
        return value

    def real(self, key: str, default: float) -> float:
        return _positive(self.get(key, default), f"{self.path}: the model", key)

    def switch(self, key: str) -> bool:
        return bool(self.get(key, False))


def _from_config(path: Path) -> ModelSpec:
    config = _Config(path)
    names = config.get("architectures", [])
    architecture = names[0] if isinstance(names, list) and names else None
    parse = _ARCHITECTURES.get(str(architecture))
    if parse is None:
        raise ModelFileError(
            f"{path}: architecture {architecture} is not supported; supported are {', '.join(_ARCHITECTURES)}"
        )
    if config.get("quantization_config"):
        raise ModelFileError(
            f"{path}: quantized safetensors ({_method(config.get('quantization_config'))}) are not served: "
            "use the unquantized model, or a GGUF file"
        )
    if (act := config.get("hidden_act", "silu")) not in ("silu", "swish"):
        raise ModelFileError(f"{path}: hidden_act {act} is not supported; silu is")
    return parse(config)


def _method(quantization: Any) -> str:
    return str(quantization.get("quant_method", "unknown")) if isinstance(quantization, dict) else "unknown"


def _dense(config: _Config, *, kv_heads: int | None = None, head_size: int | None = None) -> ModelSpec:
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    if head_size is None and config.get("head_dim") is None and hidden % heads:
        raise ModelFileError(f"{config.path}: hidden_size {hidden} does not divide into {heads} heads")
    rope, max_position = _rope(config)
    return ModelSpec(
        architecture=config.values["architectures"][0],
        hidden_size=hidden,
        intermediate_size=config.size("intermediate_size"),
        num_layers=config.size("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=config.size("num_key_value_heads", kv_heads or heads),
        head_size=config.size("head_dim", head_size or hidden // heads),
        vocab_size=config.size("vocab_size"),
        max_position=max_position,
        rms_eps=config.real("rms_norm_eps", 1e-6),
        rope=rope,
        tie_embeddings=config.switch("tie_word_embeddings"),
        torch_dtype=str(config.get("dtype", config.get("torch_dtype", "bfloat16"))).removeprefix("torch."),
    )


def _llama(config: _Config) -> ModelSpec:
    bias = config.switch("attention_bias")
    return replace(_dense(config), qkv_bias=bias, output_bias=bias, mlp_bias=config.switch("mlp_bias"))


def _mistral(config: _Config) -> ModelSpec:
    # Absent is the class's 4096, an explicit null is no window.
    absent = "sliding_window" in config.values and config.values["sliding_window"] is None
    window = None if absent else config.size("sliding_window", 4096)
    return replace(_dense(config, kv_heads=8), sliding_window=window)


def _qwen2(config: _Config) -> ModelSpec:
    return _some_layers_slide(config, replace(_dense(config), qkv_bias=True))


def _qwen3(config: _Config) -> ModelSpec:
    bias = config.switch("attention_bias")
    spec = replace(_dense(config, head_size=128), qk_norm=True, qkv_bias=bias, output_bias=bias)
    return _some_layers_slide(config, spec)


def _some_layers_slide(config: _Config, spec: ModelSpec) -> ModelSpec:
    if not config.switch("use_sliding_window"):
        return spec
    window = config.size("sliding_window", 4096)
    kinds = config.get("layer_types")
    if kinds is None:
        first = config.get("max_window_layers", 28)
        if not isinstance(first, int):
            raise ModelFileError(f"{config.path}: max_window_layers is {first!r}, it must be an integer")
        layers = tuple(layer >= first for layer in range(spec.num_layers))
    elif (
        isinstance(kinds, list)
        and len(kinds) == spec.num_layers
        and all(kind in ("sliding_attention", "full_attention") for kind in kinds)
    ):
        layers = tuple(kind == "sliding_attention" for kind in kinds)
    else:
        raise ModelFileError(
            f"{config.path}: layer_types must name sliding_attention or full_attention for each layer"
        )
    return replace(spec, sliding_window=window, sliding_layers=layers) if any(layers) else spec


_ARCHITECTURES: Mapping[str, Callable[[_Config], ModelSpec]] = {
    "LlamaForCausalLM": _llama,  # Llama 2 and 3, SmolLM2, Yi
    "MistralForCausalLM": _mistral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
}


def _rope(config: _Config) -> tuple[Rope, int]:
    """The embedding and how far it carries, from `rope_parameters` (transformers 5) or `rope_scaling` (4)."""
    scaling = config.get("rope_parameters", config.get("rope_scaling", {}))
    if not isinstance(scaling, dict):
        raise ModelFileError(f"{config.path}: rope_scaling must be an object")
    trained = config.size("max_position_embeddings", 2048)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if (share := scaling.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))) != 1.0:
        raise ModelFileError(f"{config.path}: partial_rotary_factor {share} is not supported")
    if scaling.get("truncate", True) is not True:
        raise ModelFileError(
            f"{config.path}: rope scaling with truncate {scaling['truncate']} is not supported"
        )

    def number(key: str, default: float | None = None) -> float:
        value = scaling.get(key)
        return _positive(default if value is None else value, f"{config.path}: rope scaling {kind}", key)

    theta = number("rope_theta", config.real("rope_theta", 10000.0))
    original = int(number("original_max_position_embeddings", float(trained)))
    match kind:
        # Dynamic scaling changes nothing up to the trained length; past it a token's keys would depend on
        # what follows, so the trained length is where serving ends.
        case "default" | "dynamic":
            return Rope(theta), trained
        case "linear":
            return Rope(theta, "linear", number("factor")), round(trained * number("factor"))
        case "llama3":
            return Rope(
                theta, kind, number("factor"), number("low_freq_factor"), number("high_freq_factor"), original
            ), trained  # fmt: skip
        case "yarn":
            factor = number("factor", trained / original)
            mscales = [scaling.get(key) and number(key) for key in ("mscale", "mscale_all_dim")]
            attention = number("attention_factor", _yarn_attention(factor, *mscales))
            return Rope(
                theta, "yarn", factor, original_max_position=original, attention_factor=attention,
                beta_fast=number("beta_fast", 32.0), beta_slow=number("beta_slow", 1.0),
            ), max(trained, round(original * factor))  # fmt: skip
    raise ModelFileError(
        f"{config.path}: rope scaling {kind} is not supported; supported are linear, dynamic, llama3, yarn"
    )


def _yarn_attention(factor: float, mscale: float | None = None, mscale_all_dim: float | None = None) -> float:
    """YaRN (arXiv 2309.00071), section 3.4: the scale of cos and sin."""
    if factor <= 1:
        return 1.0
    if mscale and mscale_all_dim:
        return (0.1 * mscale * math.log(factor) + 1.0) / (0.1 * mscale_all_dim * math.log(factor) + 1.0)
    return 0.1 * math.log(factor) + 1.0


# -- GGUF

# GGUF architecture -> the class in `transformers` whose arithmetic it is.
_GGUF_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def _from_gguf(path: Path) -> ModelSpec:
    with GgufFile(path) as gguf:
        kind = gguf.text("general.architecture")
        architecture = _GGUF_ARCHITECTURES.get(str(kind))
        if architecture is None:
            raise ModelFileError(
                f"{path}: architecture {kind} is not supported; supported are "
                + ", ".join(_GGUF_ARCHITECTURES)
            )
        if (gguf.integer("split.count") or 1) > 1:
            raise ModelFileError(
                f"{path} is one of {gguf.integer('split.count')} parts; merge them with gguf-split --merge"
            )

        def size(key: str, default: int | None = None) -> int:
            value = gguf.integer(f"{kind}.{key}")
            value = default if value is None else value
            if value is None or value < 1:
                raise ModelFileError(
                    f"{path}: metadata {kind}.{key} is {value!r}, it must be a positive integer"
                )
            return value

        if gguf.integer(f"{kind}.expert_count"):
            raise ModelFileError(f"{path}: mixtures of experts are not supported; use a dense model")
        embedding = gguf.tensors.get("token_embd.weight")
        if embedding is None:
            raise ModelFileError(f"{path}: tensor token_embd.weight is missing; the file is incomplete")
        heads, hidden = size("attention.head_count"), size("embedding_length")
        head_size = size("attention.key_length", hidden // heads)
        if size("attention.value_length", head_size) != head_size:
            raise ModelFileError(f"{path}: keys and values of different sizes are not supported")
        if size("rope.dimension_count", head_size) != head_size:
            raise ModelFileError(f"{path}: rotary embeddings of a part of the head are not supported")
        rope, max_position = _gguf_rope(gguf, kind or "", head_size, size("context_length"))
        return ModelSpec(
            architecture=architecture,
            hidden_size=hidden,
            intermediate_size=size("feed_forward_length"),
            num_layers=size("block_count"),
            num_heads=heads,
            num_kv_heads=size("attention.head_count_kv", heads),
            head_size=head_size,
            vocab_size=embedding.shape[0],
            max_position=max_position,
            rms_eps=_gguf_real(gguf, f"{kind}.attention.layer_norm_rms_epsilon", 1e-6),
            rope=rope,
            tie_embeddings="output.weight" not in gguf.tensors,
            qkv_bias="blk.0.attn_q.bias" in gguf.tensors,
            output_bias="blk.0.attn_output.bias" in gguf.tensors,
            mlp_bias="blk.0.ffn_down.bias" in gguf.tensors,
            qk_norm="blk.0.attn_q_norm.weight" in gguf.tensors,
            sliding_window=gguf.integer(f"{kind}.attention.sliding_window") or None,
            torch_dtype={"F32": "float32", "F16": "float16"}.get(embedding.type_name, "bfloat16"),
        )


def _gguf_real(gguf: GgufFile, key: str, default: float) -> float:
    """A positive number; 0 is as good as absent. Raises ModelFileError."""
    return _positive(gguf.real(key) or default, f"{gguf.path}: the model", key)


def _gguf_rope(gguf: GgufFile, kind: str, head_size: int, context: int) -> tuple[Rope, int]:
    theta = _gguf_real(gguf, f"{kind}.rope.freq_base", 10000.0)
    divisors = _divisors(gguf, head_size)
    factor = _gguf_real(
        gguf, f"{kind}.rope.scaling.factor", _gguf_real(gguf, f"{kind}.rope.scale_linear", 1.0)
    )
    # Files of before the type was written have a factor only.
    scaling = gguf.text(f"{kind}.rope.scaling.type") or ("none" if factor == 1.0 else "linear")
    original = gguf.integer(f"{kind}.rope.scaling.original_context_length") or context
    match scaling:
        case "none":
            return Rope(theta, divisors=divisors), context
        case "linear":
            return Rope(theta, "linear", factor, divisors=divisors), context
        case "yarn":
            attention = _yarn_attention(factor) * _gguf_real(gguf, f"{kind}.rope.scaling.attn_factor", 1.0)
            return Rope(
                theta, "yarn", factor, original_max_position=original, attention_factor=attention,
                divisors=divisors,
                beta_fast=_gguf_real(gguf, f"{kind}.rope.scaling.yarn_beta_fast", 32.0),
                beta_slow=_gguf_real(gguf, f"{kind}.rope.scaling.yarn_beta_slow", 1.0),
            ), context  # fmt: skip
    raise ModelFileError(
        f"{gguf.path}: rope scaling {scaling} is not supported; supported are none, linear, yarn"
    )


def _divisors(gguf: GgufFile, head_size: int) -> tuple[float, ...] | None:
    tensor = gguf.tensors.get("rope_freqs.weight")
    if tensor is None:
        return None
    if tensor.type_name != "F32" or tensor.shape != (head_size // 2,):
        raise ModelFileError(
            f"{gguf.path}: tensor rope_freqs.weight is {tensor.type_name} {tensor.shape}, "
            f"expected F32 ({head_size // 2},)"
        )
    return tuple(gguf.data(tensor).cast("f").tolist())
