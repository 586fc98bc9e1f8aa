"""The operators of `pillion bench kernels`: all run on every backend, with their work counted as a step's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pillion.executor.batch import Row
from pillion.executor.models.parallel import Shard
from pillion.executor.models.spec import ModelSpec, Rope
from pillion.executor.work import Costs
from pillion.kernels import operators
from pillion.kernels.interface import Backend
from pillion.kernels.operators import Bench, Sizes
from pillion.kernels.reference import ReferenceBackend
from pillion.kernels.torch import TorchBackend
from tests.cpu_kernels import cpu_backend

SIZES = Sizes(hidden=96, heads=3, kv_heads=1, head_size=32, mlp=128, vocabulary=320, layers=3)
SPEC = ModelSpec(
    architecture="LlamaForCausalLM", hidden_size=96, intermediate_size=128, num_layers=3, num_heads=3,
    num_kv_heads=1, head_size=32, vocab_size=320, max_position=2048, rms_eps=1e-5, rope=Rope(),
)  # fmt: skip
MAKE: dict[str, Callable[[], Backend]] = {
    "cpu": cpu_backend,
    "torch": TorchBackend,
    "reference": ReferenceBackend,
}
EACH = [
    *("qkv", "attention output", "down", "gate and up", "head", "rms norm", "rope"),
    *("draw, the likeliest", "draw, temperature 1", "draw, temperature 0.7, top-p 0.9", "draw, top-k 40"),
    *("attention, decodes at 20", "attention, chunk at 20"),
]


@pytest.fixture(params=MAKE)
def bench(request: Any) -> Bench:
    return Bench(MAKE[request.param](), SIZES, contexts=[20], cold=1 << 17)


def test_each_operator_is_timed_at_each_number_of_rows(bench: Bench) -> None:
    found = list(operators.timings(bench, [1, 5], 0.0005))
    fused = ["all blocks, decodes at 20", "all blocks, chunk at 20"] if bench.backend.name == "cpu" else []
    assert [(one.name, one.rows) for one in found] == [
        (name, rows) for name in (*EACH, *fused) for rows in (1, 5) if rows > 1 or "chunk" not in name
    ]
    assert all(one.seconds > 0 and one.calls >= 1 and one.flops > 0 and one.bytes > 0 for one in found)


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_their_work_is_a_step_s(quantization: str) -> None:
    """But for the embedding's rows, which no operator reads."""
    shard, share = Shard(0, 1, 0, 3), {"none": 1.0, "int8": 8.5 / 16}[quantization]
    plain = Costs.of(SPEC, shard, 2)
    costs = Costs.of(SPEC, shard, 2, int(plain.matrix_bytes * share), int(plain.head_bytes * share))
    bench = Bench(cpu_backend(quantization), SIZES, [40], quantization, cold=1 << 17)
    found = list(operators.timings(bench, [7], 0.0))
    told = {one.name: (one.flops, one.bytes) for one in found}
    int8 = {one.name for one in found if one.int8}
    linears = {*EACH[:5], "all blocks, decodes at 40", "all blocks, chunk at 40"}
    assert int8 == (linears if quantization == "int8" else set())
    for kind, rows in (
        ("decodes", [Row(slot, 40, 1, False) for slot in range(7)]),
        ("chunk", [Row(0, 40, 7, False)]),
    ):
        step = costs.step(rows)
        assert told[f"all blocks, {kind} at 40"] == (step.flops, step.read_bytes - 7 * 96 * 2)
    # One layer's operators are a third of it, and the head comes where all rows sample.
    layer = [
        told[name] for name in ("qkv", "attention output", "gate and up", "down", "attention, chunk at 40")
    ]
    assert (3 * sum(flops for flops, _ in layer), 3 * sum(read for _, read in layer)) == told[
        "all blocks, chunk at 40"
    ]
    sampled = costs.step([Row(slot, 40, 1, True) for slot in range(7)])
    blocks, head = told["all blocks, decodes at 40"], told["head"]
    assert (blocks[0] + head[0], blocks[1] + head[1]) == (sampled.flops, sampled.read_bytes - 7 * 96 * 2)


def test_weights_come_from_memory() -> None:
    """A call takes the next of copies that fill what was asked for; of small ones not without end."""
    backend, used = MAKE["reference"](), []

    def prepare(weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: used.append(weight.data_ptr()) or x

    bench = Bench(backend, SIZES, contexts=[], cold=10 * 96 * 64 * 2)
    run = operators._product(bench, 96, 64, 1, prepare)(3)
    assert run is not None
    for _ in range(25):
        run.call()
    assert len(set(used)) == 10 and used[:10] == used[10:20]
    assert operators._copies(bench, 1) == operators.MOST_COPIES and operators._copies(bench, 1 << 60) == 1


def test_a_step_has_keys_of_all_that_was_before(bench: Bench) -> None:
    with torch.inference_mode():
        step = operators._step(bench, [(1, 37), (1, 5)], 2)
    cache, size, slots = step.cache, step.cache.shape.block_size, []
    for row, length in enumerate((37, 5)):
        at = torch.arange(length)
        slots.append(step.batch.block_table[row, at // size].long() * size + at % size)
    assert len(set(torch.cat(slots).tolist())) == 42
    for layer in range(2):
        keys, values = cache.read(layer, torch.cat(slots))
        assert torch.isfinite(keys).all() and torch.isfinite(values).all()
        assert (keys.abs().sum((1, 2)) > 0).all() and (values.abs().sum((1, 2)) > 0).all()


def test_a_slow_operator_is_called_once() -> None:
    calls: list[int] = []
    assert len(operators._times(lambda: calls.append(1), -1.0)) == len(calls) == 1
    assert len(operators._times(lambda: calls.append(1), 0.01)) == len(calls) - 2 > 3
