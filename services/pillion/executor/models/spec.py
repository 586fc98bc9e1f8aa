"""What a dense model of the Llama family is made of, whatever file it came from."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding. `kind` is one of none, linear, llama3, dynamic, yarn."""

    theta: float = 10000.0
    kind: str = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    original_max_position: int = 0  # llama3, dynamic, yarn
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float | None = None  # yarn
    # GGUF of Llama 3 carries the scaling as one divisor a frequency instead; head_size / 2 of them.
    divisors: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Sizes and switches of one model; weights are named as in its Hugging Face checkpoint."""

    architecture: str  # as in config.json, e.g. LlamaForCausalLM
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int
    max_position: int
    rms_eps: float
    rope: Rope
    tie_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False  # of the attention's output projection
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None  # a query at p sees keys > p - window
    sliding_layers: tuple[bool, ...] | None = None  # which layers slide; None: all, where there is a window
    end_tokens: tuple[int, ...] = ()  # union of tokenizer's, config's and generation config's
    torch_dtype: str = "bfloat16"  # of the checkpoint

    def window(self, layer: int) -> int | None:
        """How many positions a query of this layer sees, its own included; None: all before it."""
        if self.sliding_layers is not None and not self.sliding_layers[layer]:
            return None
        return self.sliding_window
