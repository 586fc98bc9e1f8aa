"""What the executor knows of each running sequence, by slot."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pillion.contracts import executor_pb2
from pillion.contracts.entries import Sampling
from pillion.executor.sampling import from_wire


class BadPlan(ValueError):
    """The plan names what cannot be. Nothing of it was applied."""


@dataclass(slots=True)
class Sequence:
    """A sequence in its slot. It has ended once `finish` is not RUNNING; later rows of it are skipped."""

    incarnation: int
    length: int  # tokens known: prompt and output
    prompt_length: int
    max_tokens: int
    choice: int
    sampling: Sampling
    ends: frozenset[int]  # tokens that end it
    blocks: int = 0  # in its block table
    scores: int | None = None  # alternatives of each prompt token, where their log-probabilities are wanted
    computed: int | None = None  # positions whose KV is there; None until its first row says where it starts
    finish: int = executor_pb2.RUNNING

    @property
    def output(self) -> int:
        """Tokens generated so far."""
        return self.length - self.prompt_length


class Slots:
    """All slots; tokens and block tables live in arrays allocated once. Used by the compute thread alone."""

    def __init__(
        self, count: int, max_model_len: int, num_blocks: int, block_size: int, end_tokens: tuple[int, ...]
    ) -> None:
        self.max_model_len = max_model_len
        self.block_size = block_size
        self.num_blocks = num_blocks
        # One more: a prompt may fill the context, and its last row brings a token all the same.
        self.tokens: NDArray[np.int32] = np.zeros((count, max_model_len + 1), np.int32)
        self.tables: NDArray[np.int32] = np.zeros((count, -(-max_model_len // block_size)), np.int32)
        self._sequences: list[Sequence | None] = [None] * count
        self._end_tokens = frozenset(end_tokens)

    def __getitem__(self, slot: int) -> Sequence:
        """Raises BadPlan for a slot that holds no sequence."""
        sequence = self._sequences[slot] if slot < len(self._sequences) else None
        if sequence is None:
            raise BadPlan(f"slot {slot} holds no sequence; there are {len(self._sequences)} slots")
        return sequence

    def clear(self) -> None:
        self._sequences = [None] * len(self._sequences)

    def check(self, plan: executor_pb2.Plan) -> None:
        """Raises BadPlan unless `apply` can take the plan whole."""
        free = set(plan.release)
        for slot in free:
            self[slot]
        taken: dict[int, executor_pb2.Take] = {}
        for take in plan.take:
            if take.slot >= len(self._sequences) or take.slot in taken:
                raise BadPlan(f"slot {take.slot} is taken twice or beyond the {len(self._sequences)} slots")
            if self._sequences[take.slot] is not None and take.slot not in free:
                raise BadPlan(f"slot {take.slot} is taken while another sequence holds it")
            length = len(take.tokens) // 4
            if not 0 < take.prompt_length <= length <= self.max_model_len or len(take.tokens) % 4:
                raise BadPlan(
                    f"slot {take.slot}: {len(take.tokens)} bytes of tokens with a prompt of"
                    f" {take.prompt_length} do not fit max_model_len {self.max_model_len}"
                )
            taken[take.slot] = take
        if not len(plan.slot) == len(plan.start) == len(plan.count) == len(plan.sample):
            raise BadPlan("slot, start, count and sample differ in length")
        if len(plan.block_count) not in (0, len(plan.slot)) or sum(plan.block_count) != len(plan.blocks):
            raise BadPlan("block_count does not match slot or blocks")
        if len(set(plan.slot)) != len(plan.slot):
            raise BadPlan("a slot has two rows")
        if max(plan.sample, default=0) > 1 and not (set(plan.count) == {1} and all(plan.sample)):
            raise BadPlan("several tokens are granted in a plan that is not of decodes alone")
        grants = plan.block_count or [0] * len(plan.slot)
        for slot, granted in zip(plan.slot, grants, strict=True):
            if slot in taken:
                blocks = len(taken[slot].blocks)
            elif slot in free:
                raise BadPlan(f"slot {slot} is released and has a row")
            else:
                blocks = self[slot].blocks
            if blocks + granted > self.tables.shape[1]:
                raise BadPlan(
                    f"slot {slot} would have {blocks + granted} blocks; {self.tables.shape[1]} are the most"
                )
        for block in (*plan.blocks, *(block for take in plan.take for block in take.blocks)):
            if not 0 < block < self.num_blocks:
                raise BadPlan(f"block {block} is not one of 1 to {self.num_blocks - 1}")
        for take in plan.take:
            if len(take.blocks) > self.tables.shape[1]:
                raise BadPlan(
                    f"slot {take.slot} would have {len(take.blocks)} blocks; "
                    f"{self.tables.shape[1]} are the most"
                )

    def apply(self, plan: executor_pb2.Plan) -> None:
        """Releases, takes and block grants of a checked plan, in this order."""
        for slot in plan.release:
            self._sequences[slot] = None
        for take in plan.take:
            tokens = np.frombuffer(take.tokens, "<i4")
            self.tokens[take.slot, : len(tokens)] = tokens
            sampling = from_wire(take.sampling)
            ends = frozenset(sampling.stop_token_ids)
            self._sequences[take.slot] = Sequence(
                incarnation=take.incarnation,
                length=len(tokens),
                prompt_length=take.prompt_length,
                max_tokens=take.max_tokens,
                choice=take.choice,
                sampling=sampling,
                # A complete text is ended all the same: nothing can follow it.
                ends=ends if sampling.ignore_eos and sampling.constraint is None else ends | self._end_tokens,
                # They came with the first token of the output.
                scores=sampling.prompt_logprobs if len(tokens) == take.prompt_length else None,
            )
            self._grant(take.slot, list(take.blocks))
        first = 0
        for slot, count in zip(plan.slot, plan.block_count, strict=False):
            self._grant(slot, plan.blocks[first : first + count])
            first += count

    def _grant(self, slot: int, blocks: "list[int]") -> None:
        sequence = self[slot]
        self.tables[slot, sequence.blocks : sequence.blocks + len(blocks)] = blocks
        sequence.blocks += len(blocks)

    def cut(self, slot: int, length: int) -> None:
        """Takes back the tokens from position `length` on, their computing, and the end that they brought."""
        sequence = self[slot]
        sequence.length, sequence.computed = length, length - 1
        sequence.finish = executor_pb2.RUNNING

    def append(self, slot: int, token: int) -> int:
        """Adds a sampled token; gives the Finish that it brings."""
        sequence = self[slot]
        self.tokens[slot, sequence.length] = token
        sequence.length += 1
        if token in sequence.ends:
            sequence.finish = executor_pb2.STOP
        elif sequence.output >= sequence.max_tokens or sequence.length >= self.max_model_len:
            sequence.finish = executor_pb2.LENGTH
        return sequence.finish
