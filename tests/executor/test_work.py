"""Operations and bytes of a step, by hand and by counting what an engine's matrices and masks hold."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pillion.config import load
from pillion.executor.batch import Row
from pillion.executor.engine import Engine
from pillion.executor.models.parallel import Shard
from pillion.executor.models.registry import read_spec
from pillion.executor.models.spec import ModelSpec, Rope
from pillion.executor.weights import open_weights
from pillion.executor.work import INTENSITIES, Costs, Work
from pillion.modelfiles import locate

# Queries 8 wide (2 heads of 4), keys and values 4 wide each; a layer's matrices hold 8 * 8 for the queries,
# 2 * 8 * 4 for keys and values, 8 * 8 for the output, 3 * 8 * 10 for the MLP: 432 elements.
SPEC = ModelSpec(
    architecture="LlamaForCausalLM", hidden_size=8, intermediate_size=10, num_layers=3, num_heads=2,
    num_kv_heads=1, head_size=4, vocab_size=20, max_position=64, rms_eps=1e-5, rope=Rope(),
)  # fmt: skip
WHOLE = Shard(0, 1, 0, 3)


def step(
    rows: Iterable[tuple[int, int, bool]], spec: ModelSpec = SPEC, shard: Shard = WHOLE, itemsize: int = 2
) -> Work:
    """Of rows (start, count, sample)."""
    given = [Row(slot, start, count, sample) for slot, (start, count, sample) in enumerate(rows)]
    return Costs.of(spec, shard, itemsize).step(given)


def test_a_prompt_of_three_tokens() -> None:
    """Six pairs a layer: 1 + 2 + 3. Nothing samples, so the head is neither computed nor read."""
    flops = 2 * 3 * 3 * 432 + 3 * 6 * (2 * 8 + 2 * 8)  # matrices; scores and weighted sums
    read = 3 * 432 + 3 * 8 + 3 * 3 * (4 + 4)  # matrices; embedding rows; keys and values of three positions
    assert (flops, read) == (8352, 1392)
    assert step([(0, 3, False)]) == Work(8352, 2 * 1392)
    assert step([(0, 3, False)], itemsize=4) == Work(8352, 4 * 1392)


def test_keys_and_values_may_be_of_other_bytes_than_the_rest() -> None:
    """As int8 with a float32 scale each: 2 * (4 + 4) bytes a position, here in three layers."""
    rows = [Row(0, 0, 3, False)]
    read = Costs.of(SPEC, WHOLE, 2, kv_bytes=16).step(rows).read_bytes
    assert read == 2 * (3 * 432 + 3 * 8) + 3 * 3 * 16


@pytest.mark.parametrize(
    ("flops", "read", "bucket"),
    [
        (0, 0, "1"),
        (10, 10, "1"),
        (11, 10, "2"),
        (20, 10, "2"),
        (21, 10, "4"),
        (512, 1, "512"),
        (999, 1, "+Inf"),
    ],
)
def test_a_bucket_ends_at_a_power_of_two(flops: int, read: int, bucket: str) -> None:
    assert Work(flops, read).intensity == bucket
    assert bucket in INTENSITIES


def test_a_decode_beside_a_chunk() -> None:
    """The decode at position 5 sees six keys; the chunk's two rows at 4 and 5 see five and six."""
    flops = 2 * 3 * 3 * 432 + 2 * 2 * 8 * 20 + 3 * (6 + 5 + 6) * 32
    read = 3 * 432 + 8 * 20 + 3 * 8 + 3 * (6 + 6) * 8
    assert (flops, read) == (10048, 1768)
    assert step([(5, 1, True), (4, 2, True)]) == Work(10048, 2 * 1768)


def test_nothing_but_its_chunks_attention_is_added_by_chunking() -> None:
    whole = step([(0, 12, True)])
    chunks = [step([(0, 5, False)]), step([(5, 7, True)])]
    assert sum(part.flops for part in chunks) == whole.flops
    # The layers' matrices, and the KV of the first five positions, are read once more.
    assert sum(part.read_bytes for part in chunks) - whole.read_bytes == 2 * (3 * 432 + 3 * 5 * 8)


@pytest.mark.parametrize("window", [1, 2, 3, 4, 7, 20])
@pytest.mark.parametrize("start, count", [(0, 1), (0, 6), (2, 5), (3, 1), (9, 4)])
def test_windows_hide_keys(window: int, start: int, count: int) -> None:
    """Only the middle layer slides. Counted pair by pair."""
    sliding = replace(SPEC, sliding_window=window, sliding_layers=(False, True, False))
    seen = [(q, k) for q in range(start, start + count) for k in range(q + 1) if k > q - window]
    full = [(q, k) for q in range(start, start + count) for k in range(q + 1)]
    lacking = len(full) - len(seen), len({k for _, k in full}) - len({k for _, k in seen})
    open_, slid = (step([(start, count, True)], spec) for spec in (SPEC, sliding))
    assert (open_.flops - slid.flops, open_.read_bytes - slid.read_bytes) == (
        lacking[0] * 32,
        lacking[1] * 8 * 2,
    )


def test_matrices_and_head_may_have_other_sizes_than_their_elements() -> None:
    """As when they are held in few bits; embedding and KV stay as they are."""
    rows = [Row(0, 4, 1, True)]
    plain, packed = Costs.of(SPEC, WHOLE, 2).step(rows), Costs.of(SPEC, WHOLE, 2, 1000, 90).step(rows)
    assert plain.flops == packed.flops
    assert packed.read_bytes == plain.read_bytes - 2 * (3 * 432 + 160) + 1090


def test_a_rank_counts_its_own_shard() -> None:
    """Of two ranks, one holds half of everything but the one KV head, which both hold."""
    layer = 8 * (2 * 4 + 2 * 4 + 3 * 5)
    flops = 2 * 3 * layer + 2 * 8 * 10 + 3 * 6 * (2 * 4 + 2 * 4)
    read = 3 * layer + 8 * 10 + 8 + 3 * 6 * 8
    assert step([(5, 1, True)], shard=Shard(1, 2, 0, 3)) == Work(flops, 2 * read)
    stage = step([(5, 1, False)], shard=Shard(0, 1, 1, 3))
    assert stage == Work(2 * 2 * 432 + 2 * 6 * 32, 2 * (2 * 432 + 8 + 2 * 6 * 8))


@pytest.fixture(scope="module")
def make(tiny_model: Callable[..., Path]) -> Callable[[str], Engine]:
    def engine(name: str) -> Engine:
        located = locate(str(tiny_model(name)))
        flags = {"dtype": "float32", "num_kv_blocks": 8, "max_num_seqs": 2, "max_num_batched_tokens": 16}
        config = load(flags, environ={}).config
        spec = read_spec(located)
        with open_weights(located, spec) as weights:
            return Engine(config, spec, weights, located)

    return engine


@pytest.mark.parametrize("name", ["llama3", "qwen3", "smollm2"])
def test_matrices_are_those_that_the_model_holds(make: Callable[[str], Engine], name: str) -> None:
    """What two steps of one row differ in is the head; the rest of the first is the layers and one key."""
    engine = make(name)
    spec = engine.model.spec
    plain, sampled = (
        Costs.of(spec, Shard(0, 1, 0, spec.num_layers), 4).step([Row(0, 0, 1, sample)])
        for sample in (False, True)
    )
    qkv, output, gate_up, down = (linear.in_features * linear.out_features for linear in engine.model.linears)
    layer = qkv + output + 2 * gate_up + down
    head = engine.model.head.in_features * engine.model.head.out_features
    assert sampled.flops - plain.flops == 2 * head
    assert sampled.read_bytes - plain.read_bytes == 4 * head
    assert plain.flops == spec.num_layers * (2 * layer + 4 * spec.num_heads * spec.head_size)


def test_operations_are_those_that_torch_counts(make: Callable[[str], Engine]) -> None:
    """Over one layer and the head of a step whose rows need no padding; attention left out."""
    engine = make("llama3")
    hidden = torch.randn(16, engine.model.spec.hidden_size)
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        for linear in engine.model.linears:
            linear(torch.randn(16, linear.in_features))
        engine.model.logits(hidden[:2])
    spec = engine.model.spec
    costs = Costs.of(spec, Shard(0, 1, 0, 1), 4)
    rows = [Row(0, 0, 8, True), Row(1, 0, 8, True)]
    attention = 2 * 36 * 4 * spec.num_heads * spec.head_size
    assert counter.get_total_flops() == costs.step(rows).flops - attention > 0
