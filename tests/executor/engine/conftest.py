"""Engines on real models, and a small scheduler that runs whatever schedule a test wants."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pillion import config as conf
from pillion.contracts import executor_pb2 as pb
from pillion.executor.engine import Engine
from pillion.executor.models.registry import read_spec
from pillion.executor.weights import open_weights
from pillion.modelfiles import Located, locate

MakeEngine = Callable[..., Engine]


@pytest.fixture(scope="session", autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def make_engine() -> MakeEngine:
    """`make_engine(located or path, dtype="float32", **leaves of the configuration)`."""

    def make(model: Located | Path, dtype: str = "float32", **leaves: Any) -> Engine:
        located = model if isinstance(model, Located) else locate(str(model))
        config = conf.load(flags={"dtype": dtype, **leaves}, environ={}).config
        spec = read_spec(located)
        with open_weights(located, spec) as weights:
            return Engine(config, spec, weights, located)

    return make


@pytest.fixture(scope="session")
def demo_float32(demo: Located, make_engine: MakeEngine) -> Engine:
    return make_engine(demo, "float32", kv_cache_memory="512MiB")


@pytest.fixture(scope="session")
def demo_bfloat16(demo: Located, make_engine: MakeEngine) -> Engine:
    return make_engine(demo, "bfloat16", kv_cache_memory="512MiB")


@pytest.fixture(scope="session")
def demo_int8(demo: Located, make_engine: MakeEngine) -> Engine:
    return make_engine(demo, "bfloat16", quantization="int8", kv_cache_memory="512MiB")


@pytest.fixture(scope="session")
def demo_gguf_packed(demo: Located, make_engine: MakeEngine) -> Engine:
    return make_engine(demo, "bfloat16", quantization="gguf", kv_cache_memory="512MiB")


@pytest.fixture(scope="session")
def demo_kv_int8(demo: Located, make_engine: MakeEngine) -> Engine:
    return make_engine(demo, "bfloat16", kv_cache_dtype="int8", kv_cache_memory="512MiB")


@pytest.fixture(scope="session")
def demo_transformers(demo: Located) -> Any:
    """The demo model in `transformers`, float32."""
    return transformers_model(demo.path)


def transformers_model(path: Path) -> Any:
    from transformers import AutoModelForCausalLM

    where: dict[str, Any] = {"pretrained_model_name_or_path": path}
    if path.is_file():
        where = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    return AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.float32, attn_implementation="eager"
    ).eval()


@pytest.fixture(scope="session")
def load_transformers() -> Callable[[Path], Any]:
    return transformers_model


@dataclass
class Sequence:
    """One sequence as a scheduler sees it."""

    tokens: list[int]
    prompt_length: int
    max_tokens: int = 1
    sampling: dict[str, Any] = field(default_factory=dict)
    done: int = 0  # positions computed
    slot: int = -1
    incarnation: int = 0
    blocks: list[int] = field(default_factory=list)
    finish: int = pb.RUNNING
    error: str = ""
    logprobs: list[Any] = field(default_factory=list)
    prompt_logprobs: bytes = b""

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_length :]


class Driver:
    """Runs schedules on an engine. Blocks are given out in a shuffled order.

    `hidden[id(sequence)][position]` holds the last hidden state that was computed there; `chunks` counts the
    (start, count) that ran, `rows` the tokens computed.
    """

    def __init__(self, engine: Engine, seed: int = 0, *, record: bool = True) -> None:
        self.engine = engine
        self.facts = engine.facts
        self.random = np.random.default_rng(seed)
        self.free = self.random.permutation(np.arange(1, self.facts.num_blocks)).tolist()
        self.slots = list(range(self.facts.max_num_seqs))
        self.release: list[int] = []
        self.take: list[Sequence] = []
        self.step_number = 0
        self.incarnations = 0
        self.chunks: list[tuple[int, int]] = []
        self.rows = 0
        self.record = record
        self.hidden: dict[int, dict[int, torch.Tensor]] = {}
        engine.reset()

    def add(
        self, tokens: Any, max_tokens: int = 1, *, prompt_length: int | None = None, cached: int = 0,
        blocks: tuple[int, ...] = (), **sampling: Any,
    ) -> Sequence:  # fmt: skip
        """`cached` positions are in `blocks` already."""
        tokens = [int(token) for token in tokens]
        sequence = Sequence(tokens, prompt_length or len(tokens), max_tokens, {"temperature": 0, **sampling})
        self.start(sequence, cached, blocks)
        return sequence

    def start(self, sequence: Sequence, cached: int = 0, blocks: tuple[int, ...] = ()) -> None:
        self.incarnations += 1
        sequence.slot, sequence.incarnation = self.slots.pop(0), self.incarnations
        sequence.done, sequence.blocks, sequence.prompt_logprobs = cached, list(blocks), b""
        self.take.append(sequence)

    def drop(self, sequence: Sequence, *, keep_blocks: bool = False) -> None:
        """Takes slot and blocks away; `start` begins it again with the tokens so far."""
        self.release.append(sequence.slot)
        self.slots.append(sequence.slot)
        if not keep_blocks:
            self.free.extend(sequence.blocks)
        sequence.blocks = []
        sequence.slot = -1

    def plan(self, rows: list[tuple[Sequence, int]], steps: int = 1) -> pb.Plan:
        """`steps`: tokens granted where one is sampled, if the sequence may still get so many."""
        self.step_number += 1
        plan = pb.Plan(step=self.step_number, release=self.release)
        for sequence in self.take:
            sampling = pb.Sampling(**sequence.sampling)
            plan.take.append(
                pb.Take(
                    slot=sequence.slot, incarnation=sequence.incarnation, sampling=sampling,
                    tokens=np.array(sequence.tokens, "<i4").tobytes(), prompt_length=sequence.prompt_length,
                    blocks=sequence.blocks, max_tokens=sequence.max_tokens,
                )
            )  # fmt: skip
        self.release, self.take = [], []
        for sequence, count in rows:
            end = sequence.done + count
            left = sequence.prompt_length + sequence.max_tokens - len(sequence.tokens)
            sample = min(steps, left) if end == len(sequence.tokens) else 0
            granted = []
            while len(sequence.blocks) * self.facts.block_size < end + max(sample - 1, 0):
                granted.append(self.free.pop(0))
                sequence.blocks.append(granted[-1])
            plan.slot.append(sequence.slot)
            plan.start.append(sequence.done)
            plan.count.append(count)
            plan.sample.append(sample)
            plan.block_count.append(len(granted))
            plan.blocks.extend(granted)
        return plan

    def step(self, rows: list[tuple[Sequence, int]], steps: int = 1) -> pb.StepResult:
        plan = self.plan(rows, steps)
        forward, seen = self.engine.model.forward, []

        def recording(*args: Any) -> torch.Tensor:
            seen.append(forward(*args).clone())
            return seen[-1]

        if self.record:
            self.engine.model.forward = recording
        try:
            result = self.engine.run(plan)
        finally:
            if self.record:
                del self.engine.model.forward
        brought = dict(zip(result.incarnation, result.token_count, strict=True))
        for number in range(max(1, result.steps)):
            at = 0
            for sequence, count in rows:
                if number and brought[sequence.incarnation] <= number:
                    continue
                if self.record and seen:
                    known = self.hidden.setdefault(id(sequence), {})
                    for offset in range(count):
                        known[sequence.done + offset] = seen[number][at + offset].clone()
                self.chunks.append((sequence.done, count))
                self.rows += count
                sequence.done += count
                at += count
        by_incarnation = {sequence.incarnation: sequence for sequence, _ in rows}
        first = first_logprob = 0
        for index, incarnation in enumerate(result.incarnation):
            sequence = by_incarnation[incarnation]
            count = result.token_count[index]
            sequence.tokens.extend(result.tokens[first : first + count])
            sequence.finish = result.finish[index]
            sequence.error = result.errors.get(sequence.slot, "")
            sequence.prompt_logprobs += dict(result.prompt_logprobs).get(sequence.slot, b"")
            first += count
            count = result.logprob_count[index]
            sequence.logprobs.extend(result.logprobs[first_logprob : first_logprob + count])
            first_logprob += count
        return result

    def finish(self, sequences: list[Sequence], chunk: int | None = None, steps: int = 1) -> None:
        """Prompts one after the other in chunks, then all decode together, so many steps a plan."""
        most = chunk or self.facts.max_step_tokens
        for sequence in sequences:
            while sequence.done < sequence.prompt_length:
                self.step([(sequence, min(most, len(sequence.tokens) - sequence.done))])
        while running := [s for s in sequences if s.finish == pb.RUNNING]:
            self.step([(sequence, 1) for sequence in running], steps)

    def states(self, sequence: Sequence) -> torch.Tensor:
        """Hidden states [positions, H] of all computed positions."""
        known = self.hidden[id(sequence)]
        assert sorted(known) == list(range(len(known)))
        return torch.stack([known[position] for position in range(len(known))])


@pytest.fixture(scope="session")
def drive() -> type[Driver]:
    return Driver
