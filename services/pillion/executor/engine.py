"""Runs plans: one plan, one step or several of decodes, one result."""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec
import torch
from torch import Tensor

from pillion.config import Config, ConfigError, parse_bytes
from pillion.contracts import executor_pb2
from pillion.contracts.entries import Constraint, Facts
from pillion.executor.batch import Batch, Row
from pillion.executor.memory import available_bytes, size_pool
from pillion.executor.models.llama import Llama
from pillion.executor.models.parallel import Alone, Shard
from pillion.executor.models.spec import ModelSpec
from pillion.executor.results import Results
from pillion.executor.sampling import Sampler, constraint_from_wire
from pillion.executor.scoring import Scorer
from pillion.executor.slots import BadPlan, Slots
from pillion.executor.work import Costs, Work
from pillion.grammar import PLACES, Grammars
from pillion.kernels.four_bit import FourBit
from pillion.kernels.interface import Backend, CacheShape
from pillion.kernels.rows import RowCounts, candidates, check, few_candidates, sample_rows
from pillion.kernels.select import NoBackend, select
from pillion.modelfiles import Located

DEFAULT_STEP_TOKENS = 512


class Weights(Protocol):
    """`pillion.executor.weights.Weights`, or whatever else holds tensors by their checkpoint's names."""

    identity: str  # names the content

    def get(self, name: str) -> Tensor: ...

    def four_bit(self, name: str) -> FourBit | None: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """Where a step's time went, seconds, and what it did."""

    prepare: float  # the plan to buffers
    forward: float  # all layers
    logits: float
    sample: float
    tokens: int  # computed, padding left out
    rows: int  # computed, padding included
    work: Work

    @property
    def seconds(self) -> float:
        """From the step's first operation to its last."""
        return self.prepare + self.forward + self.logits + self.sample


class Engine:
    """One model, its KV cache and its slots. `run` and `reset` belong to one thread."""

    def __init__(self, config: Config, spec: ModelSpec, weights: Weights, located: Located) -> None:
        """Loads, packs and checks; torch's threads are set before. Raises ConfigError with what to change."""
        executor, scheduler = config.executor, config.scheduler
        device = _device(executor.device)
        dtype = _dtype(config.model.dtype, device)
        try:
            kv_int8 = executor.kv_cache_dtype == "int8"
            selected = select(executor.backend, dtype, device, config.model.quantization, kv_int8)
        except NoBackend as error:
            raise ConfigError(str(error)) from None
        backend = self._backend = selected.backend
        shard = Shard(0, 1, 0, spec.num_layers)
        packed = config.model.quantization == "gguf"
        self.model = Llama(spec, weights, backend, dtype, device, shard, Alone(), packed)

        max_num_seqs = scheduler.max_num_seqs
        max_step_tokens = max(scheduler.max_num_batched_tokens or DEFAULT_STEP_TOKENS, max_num_seqs)
        block_size = executor.block_size or backend.capabilities.block_size
        memory = executor.kv_cache_memory
        wanted = config.model.max_model_len or spec.max_position
        if wanted > spec.max_position:
            raise ConfigError(
                f"max_model_len {wanted} is more than the model's context of {spec.max_position}; lower it"
            )
        shape = CacheShape(
            self.model.layers, 1, block_size, self.model.kv_heads, spec.head_size, dtype, device, kv_int8
        )
        pool = size_pool(
            block_bytes=shape.bytes,
            block_size=block_size,
            max_model_len=wanted,
            max_num_seqs=max_num_seqs,
            num_blocks=executor.num_kv_blocks,
            memory=None if memory is None else parse_bytes(memory),
            available=available_bytes(device, executor.gpu_memory_utilization),
        )
        try:
            self._cache = backend.allocate_cache(replace(shape, num_blocks=pool.num_blocks))
        except ValueError as error:
            raise ConfigError(str(error)) from None
        self._slots = Slots(max_num_seqs, pool.max_model_len, pool.num_blocks, block_size, spec.end_tokens)
        self._batch = Batch(max_step_tokens, max_num_seqs, self._slots.tables.shape[1], device)
        self.grammars = Grammars(located, spec.vocab_size, max_num_seqs)
        self._sampler = Sampler(backend, spec.vocab_size, spec.end_tokens, max_num_seqs, self.grammars)
        self._costs = Costs.of(
            spec,
            shard,
            dtype.itemsize,
            self.model.matrix_bytes,
            self.model.head.weight_bytes,
            shape.position_bytes,
        )
        with torch.inference_mode():
            self.row_counts, self.sample_row_counts = self._check_rows(
                max_step_tokens, max_num_seqs, dtype, device
            )
        self._scorer = Scorer(self.model, self.sample_row_counts)
        self.notes = (
            *pool.notes,
            *_row_notes(self.row_counts, self.sample_row_counts),
        )  # what the user should know
        self.parts: list[Parts] = []  # of each step that the last plan ran
        self._facts = Facts(
            model=config.model.served_model_name or located.name,
            fingerprint=_fingerprint(weights.identity, dtype, device, backend, shard, kv_int8),
            max_model_len=pool.max_model_len,
            vocab_size=spec.vocab_size,
            end_tokens=spec.end_tokens,
            block_size=block_size,
            num_blocks=pool.num_blocks,
            max_num_seqs=max_num_seqs,
            max_step_tokens=max_step_tokens,
            tile=scheduler.tile or backend.capabilities.tile,
            dtype=str(dtype).removeprefix("torch."),
            backend=backend.name,
            tp=shard.tp_size,
            pp=1,
            backend_reason=selected.reason,
            grammars=PLACES,
        )

    @property
    def facts(self) -> Facts:
        return self._facts

    @property
    def kv_cache_bytes(self) -> int:
        return self._cache.shape.bytes

    def reset(self) -> None:
        """Drops all slots."""
        self._slots.clear()
        self._sampler.clear()

    def compile(self, place: int, message: executor_pb2.Constraint) -> None:
        """Has a constraint ready before a plan takes a slot with it. Blocks; for a thread of its own.

        Raises ValueError for one that cannot be. What does not compile fails the sequences that have it.
        """
        constraint = msgspec.convert(msgspec.to_builtins(constraint_from_wire(message)), Constraint)
        self.grammars.compile(place, constraint)

    def run(self, plan: executor_pb2.Plan) -> executor_pb2.StepResult:
        """Runs one step, or as many as tokens are granted.

        Raises BadPlan for a plan that names what cannot be. If that is for its slots or blocks, nothing was
        applied; if a step raises later, releases, takes and grants stand, and no token was added to any
        sequence.
        """
        began = time.perf_counter()
        self.parts = []
        self._slots.check(plan)
        self._slots.apply(plan)
        for slot in plan.release:
            self._sampler.remove(slot)
        results = Results()
        for take in plan.take:
            self._begin(take.slot, results)
        rows = self._rows_of(plan)
        with torch.inference_mode():
            self._steps(rows, results, began)
        return results.message(plan.step, len(self.parts))

    def judge(self, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """How a sequence by itself looks to the model; all slots are dropped.

        Of tokens [T], at most a step's: the likeliest next token after each, int64 [T], and the natural
        logarithm of the probability of each but the first, float32 [T - 1].
        """
        self.reset()
        size, count = self._slots.block_size, len(tokens)
        self._slots.tokens[0, :count] = tokens
        self._slots.tables[0, : -(-count // size)] = range(1, -(-count // size) + 1)
        with torch.inference_mode():
            step = self._batch.fill([Row(0, 0, count, True)], self._slots, self.row_counts.up(count))
            attention = self._backend.begin(self._cache, step.attention, self.model.heads)
            hidden = self.model.forward(step.token_ids, step.attention.positions, attention)[:count]
            logits = self.model.logits(hidden)
            likely = torch.log_softmax(logits[:-1], -1)
            return logits.argmax(-1), likely.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]

    def _begin(self, slot: int, results: Results) -> None:
        """Gives the slot its sampling state, from its tokens; its sequence fails where that cannot be."""
        sequence = self._slots[slot]
        tokens = self._slots.tokens[slot, : sequence.length]
        try:
            self._sampler.add(slot, sequence.sampling, sequence.choice, tokens, sequence.prompt_length)
        except ValueError as error:
            self._fail(results, slot, str(error))

    def _rows_of(self, plan: executor_pb2.Plan) -> list[Row]:
        """The plan's rows without those of ended sequences. Raises BadPlan for rows that cannot be."""
        rows = []
        for slot, start, count, sample in zip(plan.slot, plan.start, plan.count, plan.sample, strict=True):
            sequence = self._slots[slot]
            if sequence.finish != executor_pb2.RUNNING:
                continue
            end = start + count
            if count < 1 or end > sequence.length or (sample and end != sequence.length):
                raise BadPlan(
                    f"slot {slot}: positions {start} to {end - 1}, sample {sample}, of {sequence.length}"
                )
            more = max(sample - 1, 0)
            if end + more > sequence.blocks * self._slots.block_size:
                raise BadPlan(
                    f"slot {slot}: position {end + more - 1} is beyond its {sequence.blocks} blocks"
                )
            if sequence.computed is None:
                sequence.computed = start  # what lies before it was found in the prefix index
            # At a block's border a prefill may go on behind blocks that it found in the prefix index.
            if start > sequence.computed and start % self._slots.block_size:
                raise BadPlan(
                    f"slot {slot}: position {start}, but only the first {sequence.computed} are computed"
                )
            scored = 0 if sequence.scores is None else max(0, min(end, sequence.prompt_length - 1) - start)
            rows.append(Row(slot, start, count, bool(sample), more, scored))
        if sum(row.count for row in rows) > self._facts.max_step_tokens:
            raise BadPlan(
                f"{sum(row.count for row in rows)} tokens; {self._facts.max_step_tokens} are the most a step"
            )
        return rows

    def _steps(self, planned: Sequence[Row], results: Results, began: float) -> None:
        """Step after step over the rows that have tokens left; where one raises, none of them has been."""
        rows = planned
        try:
            while rows:
                self._compute(rows, results, began)
                began = time.perf_counter()
                rows = [
                    Row(row.slot, row.start + 1, 1, True, row.more - 1)
                    for row in rows
                    if row.more and self._slots[row.slot].finish == executor_pb2.RUNNING
                ]
        except Exception:
            for row in planned if self.parts else ():
                self._slots.cut(row.slot, row.start + 1)
                self._sampler.remove(row.slot)
                self._begin(row.slot, results)
            raise

    def _compute(self, rows: Sequence[Row], results: Results, began: float) -> None:
        sampling = [row for row in rows if row.sample]
        self._sampler.expect([row.slot for row in sampling])
        padded = self.row_counts.up(sum(row.count for row in rows))
        step = self._batch.fill(rows, self._slots, padded)
        attention = self._backend.begin(self._cache, step.attention, self.model.heads)
        prepared = time.perf_counter()
        hidden = self.model.forward(step.token_ids, step.attention.positions, attention)
        ran = time.perf_counter()
        prompts = self._scorer.score(hidden, rows, self._slots)
        draws = None
        judged = time.perf_counter()
        if sampling:
            chosen = hidden.new_zeros(self.sample_row_counts.up(len(sampling)), hidden.shape[1])
            torch.index_select(hidden, 0, step.sample_rows, out=chosen[: len(sampling)])
            logits = self.model.logits(chosen)[: len(sampling)]
            judged = time.perf_counter()
            draws = self._sampler.sample(
                logits, [row.slot for row in sampling], [self._slots[row.slot].output for row in sampling]
            )
        # From here on nothing can raise: sequences change all together.
        for row in rows:
            self._slots[row.slot].computed = row.start + row.count
        for slot, brought in prompts.items():
            if isinstance(brought, str):
                self._fail(results, slot, brought)
            else:
                results.prompt(slot, self._slots[slot], brought)
        if draws is not None:
            for index, row in enumerate(sampling):
                if self._slots[row.slot].finish != executor_pb2.RUNNING:
                    continue  # its prompt's rows failed
                if index in draws.errors:
                    self._fail(results, row.slot, draws.errors[index])
                elif index in draws.impossible:
                    self._fail(results, row.slot, draws.impossible[index], executor_pb2.IMPOSSIBLE)
                else:
                    token = draws.tokens[index]
                    self._sampler.note(row.slot, token)
                    self._slots.append(row.slot, token)
                    results.add(row.slot, self._slots[row.slot], token, draws.logprobs[index])
        self.parts.append(
            Parts(
                prepare=prepared - began,
                forward=ran - prepared,
                logits=judged - ran,
                sample=time.perf_counter() - judged,
                tokens=step.tokens,
                rows=padded,
                work=self._costs.step(rows),
            )
        )

    def _fail(
        self,
        results: Results,
        slot: int,
        message: str,
        finish: "executor_pb2.Finish.ValueType" = executor_pb2.ERROR,
    ) -> None:
        sequence = self._slots[slot]
        sequence.finish = finish
        results.fail(slot, sequence, message)

    def _check_rows(
        self, most: int, most_samples: int, dtype: torch.dtype, device: torch.device
    ) -> tuple[RowCounts, RowCounts]:
        like = torch.empty(0, dtype=dtype, device=device)
        if self._backend.capabilities.any_rows:
            return RowCounts(tuple(range(1, most + 1))), RowCounts(tuple(range(1, most_samples + 1)))
        layers = [(linear, sample_rows(linear.in_features, like)) for linear in self.model.linears]
        head = self.model.head
        return (
            check(layers, candidates(most)),
            check([(head, sample_rows(head.in_features, like.float()))], few_candidates(most_samples)),
        )


def _row_notes(*found: RowCounts) -> list[str]:
    return [
        f"steps are padded to {rows.counts[-1]} rows: no smaller count gave the same bits; "
        "another --dtype or --threads may"
        for rows in found
        if len(rows.counts) == 1 and rows.refused
    ]


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "torch finds no CUDA device; set --device cpu, or install a driver and a CUDA build"
        )
    return torch.device(name)


def _dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16, unless the CPU would have to emulate it."""
    if name == "auto":
        native = device.type != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported()
        return torch.bfloat16 if native else torch.float32
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _fingerprint(
    identity: str, dtype: torch.dtype, device: torch.device, backend: Backend, shard: Shard, kv_int8: bool
) -> str:
    """Names all that a token's bits depend on."""
    unit = torch.backends.cpu.get_cpu_capability()
    if device.type == "cuda":
        unit = torch.cuda.get_device_name(device)
    kv = "int8" if kv_int8 else dtype
    numbers = (dtype, kv, backend.build, torch.__version__, torch.__config__.show())
    parts = (identity, *numbers, unit, shard.tp_size)
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]
