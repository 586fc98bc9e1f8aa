"""A plan's rows as the buffers that a step reads. Allocated once, filled on the host."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pillion.executor.slots import Slots
from pillion.kernels.interface import AttentionBatch


@dataclass(frozen=True, slots=True)
class Row:
    """`count` tokens of the sequence in `slot` from position `start` on; the last one samples or not."""

    slot: int
    start: int
    count: int
    sample: bool
    more: int = 0  # tokens that the plan grants behind the one sampled
    scored: int = 0  # so many of its first tokens tell how likely the prompt's next one is


@dataclass(frozen=True, slots=True)
class Step:
    """Views of the buffers for one step, on the device. Padded rows have token 0 and write to block 0."""

    token_ids: Tensor  # int32 [T]
    attention: AttentionBatch  # positions and slot_mapping int64 [T], the rest by sequence
    sample_rows: Tensor  # int32 [R]
    tokens: int  # of T, those that are no padding


class Batch:
    """The buffers: token_ids int32[T], positions int64[T], slot_mapping int64[T], cu_seqlens_q int32[S + 1],
    seqused_k int32[S], block_table int32[S, max_blocks], sample_rows int32[R]."""

    def __init__(self, max_tokens: int, max_sequences: int, max_blocks: int, device: torch.device) -> None:
        self._device = device
        self._token_ids = self._buffer(torch.int32, max_tokens)
        self._positions = self._buffer(torch.int64, max_tokens)
        self._slot_mapping = self._buffer(torch.int64, max_tokens)
        self._cu_seqlens_q = self._buffer(torch.int32, max_sequences + 1)
        self._seqused_k = self._buffer(torch.int32, max_sequences)
        self._block_table = self._buffer(torch.int32, max_sequences, max_blocks)
        self._sample_rows = self._buffer(torch.int32, max_sequences)

    def _buffer(self, dtype: torch.dtype, *size: int) -> "_Buffer":
        return _Buffer(dtype, size, self._device)

    def fill(self, rows: Sequence[Row], slots: Slots, padded: int) -> Step:
        """`padded` is T, at least the rows' tokens. Rows come in the plan's order: decodes first."""
        tokens, positions, mapping = self._token_ids.host, self._positions.host, self._slot_mapping.host
        cu_seqlens, seqused, table = self._cu_seqlens_q.host, self._seqused_k.host, self._block_table.host
        size = slots.block_size
        at = samples = 0
        cu_seqlens[0] = 0
        for index, row in enumerate(rows):
            end = row.start + row.count
            own = slots.tables[row.slot]
            if row.count == 1:
                tokens[at] = slots.tokens[row.slot, row.start]
                positions[at] = row.start
                mapping[at] = int(own[row.start // size]) * size + row.start % size
            else:
                span = np.arange(row.start, end)
                tokens[at : at + row.count] = slots.tokens[row.slot, row.start : end]
                positions[at : at + row.count] = span
                mapping[at : at + row.count] = own[span // size].astype(np.int64) * size + span % size
            at += row.count
            cu_seqlens[index + 1] = at
            seqused[index] = end
            table[index] = own
            if row.sample:
                self._sample_rows.host[samples] = at - 1
                samples += 1
        for padding in (tokens, positions, mapping):
            padding[at:padded] = 0
        count = len(rows)
        attention = AttentionBatch(
            positions=self._positions.device(padded),
            slot_mapping=self._slot_mapping.device(padded),
            cu_seqlens_q=self._cu_seqlens_q.device(count + 1),
            seqused_k=self._seqused_k.device(count),
            block_table=self._block_table.device(count),
            query_lens=[row.count for row in rows],
            kv_lens=[row.start + row.count for row in rows],
        )
        return Step(self._token_ids.device(padded), attention, self._sample_rows.device(samples), at)


class _Buffer:
    """Memory on the host that numpy fills, and its like on the device; on a CPU the same."""

    def __init__(self, dtype: torch.dtype, size: tuple[int, ...], device: torch.device) -> None:
        pinned = device.type == "cuda"
        self._host = torch.zeros(size, dtype=dtype, pin_memory=pinned)
        self._device = torch.zeros(size, dtype=dtype, device=device) if pinned else self._host
        self.host = self._host.numpy()

    def device(self, count: int) -> Tensor:
        """The first `count` elements or rows as the device sees them; copied there in stream order."""
        view = self._device[:count]
        if self._device is not self._host:
            view.copy_(self._host[:count], non_blocking=True)
        return view
