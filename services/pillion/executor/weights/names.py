"""Which tensors a model has, by the names of its Hugging Face checkpoint, and what shape each has."""

from collections.abc import Iterator

from pillion.executor.models.spec import ModelSpec

EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"


def expected_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Every tensor that the model needs; rows (outputs) first. Tied embeddings have no head of their own."""
    shapes: dict[str, tuple[int, ...]] = {
        EMBEDDING: (spec.vocab_size, spec.hidden_size),
        NORM: (spec.hidden_size,),
    }
    if not spec.tie_embeddings:
        shapes[HEAD] = (spec.vocab_size, spec.hidden_size)
    for layer in range(spec.num_layers):
        shapes.update((f"model.layers.{layer}.{name}", shape) for name, shape in _layer(spec))
    return shapes


def _layer(spec: ModelSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, mlp = spec.hidden_size, spec.intermediate_size
    queries, keys = spec.num_heads * spec.head_size, spec.num_kv_heads * spec.head_size
    linears = (
        ("self_attn.q_proj", queries, hidden, spec.qkv_bias),
        ("self_attn.k_proj", keys, hidden, spec.qkv_bias),
        ("self_attn.v_proj", keys, hidden, spec.qkv_bias),
        ("self_attn.o_proj", hidden, queries, spec.output_bias),
        ("mlp.gate_proj", mlp, hidden, spec.mlp_bias),
        ("mlp.up_proj", mlp, hidden, spec.mlp_bias),
        ("mlp.down_proj", hidden, mlp, spec.mlp_bias),
    )
    for name, rows, columns, bias in linears:
        yield f"{name}.weight", (rows, columns)
        if bias:
            yield f"{name}.bias", (rows,)
    yield "input_layernorm.weight", (hidden,)
    yield "post_attention_layernorm.weight", (hidden,)
    if spec.qk_norm:
        yield "self_attn.q_norm.weight", (spec.head_size,)
        yield "self_attn.k_norm.weight", (spec.head_size,)
