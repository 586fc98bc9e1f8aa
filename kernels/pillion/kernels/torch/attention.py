"""Paged attention out of a few batched operators, the same bits for every chunking and batch.

Keys are taken in spans of fixed absolute positions. Every product is a batch of (sequence, KV head, span):
its bits depend on the span's keys and the query alone, because query rows are padded to counts that a check
found bit-equal. Scores of a query are one softmax over its spans; hidden keys weigh exactly 0, so it does not
matter how many follow. The spans' outputs are added in ascending order.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pillion.kernels.interface import AttentionBatch
from pillion.kernels.torch.cache import PagedCache

SPAN = 128  # positions, or one block where blocks are longer
TILE = 128  # most tokens of one sequence that attend together
SCRATCH = 4 << 20  # elements of the largest intermediate; one sequence's keys and one tile may exceed it


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences that attend in one batch: B of them with n query tokens each, over `spans` spans."""

    rows: slice | Tensor  # of the step, B * n of them
    batch: int
    tokens: int
    spans: int
    query_rows: int  # tokens * (heads / KV heads), padded
    gather: Tensor  # int64 [B * kv_heads * spans * blocks a span]: blocks of the cache by layer
    masked_from: int  # the first span with a hidden key
    hidden: Tensor  # bool [B, 1, spans - masked_from, query_rows, span]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Query tokens of one sequence: `tokens` from step row `row` at `position` on."""

    sequence: int
    row: int
    tokens: int
    position: int
    first: int  # spans first .. last - 1 hold what it sees
    last: int

    @property
    def spans(self) -> int:
        return self.last - self.first


class Scratch:
    """Memory for intermediates, by name; grows to what is asked for and is then used again."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Undefined content, of the shape; the last taker of this name loses it."""
        count = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < count or buffer.dtype != dtype:
            buffer = self._buffers[name] = torch.empty(count, dtype=dtype, device=self._device)
        return buffer[:count].view(shape)


class Attention:
    """One step's attention. Groups are made once for each window that layers have."""

    def __init__(
        self, cache: PagedCache, batch: AttentionBatch, heads: int, row_multiple: int, scratch: "Scratch"
    ) -> None:
        shape = cache.shape
        self.scratch = scratch
        self.cache = cache
        self.batch = batch
        self.heads = heads
        self.group_size = heads // shape.kv_heads
        self.row_multiple = row_multiple
        self.blocks_per_span = max(1, SPAN // shape.block_size)
        self.span = self.blocks_per_span * shape.block_size
        self.scale = shape.head_size**-0.5
        device = shape.device
        self._head_offsets = torch.arange(shape.kv_heads, device=device) * cache.blocks
        # Writing position of (token, head) in a layer seen as rows of head_size.
        self.write_index = (batch.slot_mapping[:, None] + self._head_offsets * shape.block_size).flatten()
        total = len(batch.slot_mapping)
        self.out = torch.empty(total, heads * shape.head_size, dtype=shape.dtype, device=device)
        self.out[sum(batch.query_lens) :] = 0
        self._groups: dict[int | None, list[Group]] = {}
        self._begin_blocks()

    def _begin_blocks(self) -> None:
        size = self.cache.shape.block_size
        fresh = [
            (sequence, block)
            for sequence, (count, length) in enumerate(
                zip(self.batch.query_lens, self.batch.kv_lens, strict=True)
            )
            for block in range(-(-(length - count) // size), -(-length // size))
        ]
        if fresh:
            sequences, blocks = torch.tensor(fresh, device=self.cache.shape.device).unbind(1)
            self.cache.clear_values(self.batch.block_table[sequences, blocks].long())

    def groups(self, window: int | None) -> list[Group]:
        groups = self._groups.get(window)
        if groups is None:
            pieces = list(self._pieces(window))
            singles = sorted(
                (piece for piece in pieces if piece.tokens == 1), key=lambda piece: (-piece.spans, piece.row)
            )
            groups = [self._group(part, window) for part in self._alike(singles)]
            groups += [self._group([piece], window) for piece in pieces if piece.tokens > 1]
            self._groups[window] = groups
        return groups

    def _pieces(self, window: int | None) -> Iterator[_Piece]:
        row = 0
        for sequence, (count, length) in enumerate(
            zip(self.batch.query_lens, self.batch.kv_lens, strict=True)
        ):
            position, end = length - count, row + count
            while row < end:
                keys = position + min(TILE, end - row)
                fitting = SCRATCH // (self.heads * -(-keys // self.span) * self.span)
                tokens = min(TILE, end - row, max(fitting, self.row_multiple))
                first = 0 if window is None else max(0, position - window + 1) // self.span
                yield _Piece(sequence, row, tokens, position, first, -(-(position + tokens) // self.span))
                row += tokens
                position += tokens

    def _alike(self, pieces: Sequence[_Piece]) -> Iterator[list[_Piece]]:
        """Runs of the sorted pieces whose padding to the longest is under a quarter, and fits the scratch."""
        shape = self.cache.shape
        part: list[_Piece] = []
        for piece in pieces:
            if part:
                spans = part[0].spans
                size = (len(part) + 1) * spans * self.span * shape.kv_heads * shape.head_size
                if 4 * piece.spans <= 3 * spans or size > SCRATCH:
                    yield part
                    part = []
            part.append(piece)
        if part:
            yield part

    def _group(self, pieces: Sequence[_Piece], window: int | None) -> Group:
        shape, device = self.cache.shape, self.cache.shape.device
        tokens, spans = pieces[0].tokens, pieces[0].spans
        query_rows = -(-tokens * self.group_size // self.row_multiple) * self.row_multiple
        rows: slice | Tensor
        if all(piece.row == pieces[0].row + i for i, piece in enumerate(pieces)):
            rows = slice(pieces[0].row, pieces[0].row + len(pieces) * tokens)
        else:
            rows = torch.tensor([piece.row for piece in pieces], device=device)

        # Blocks beyond a sequence's own are the zero block.
        first = torch.tensor([piece.first for piece in pieces], device=device)[:, None]
        used = torch.tensor(
            [-(-(piece.position + tokens) // shape.block_size) for piece in pieces], device=device
        )
        table = self.batch.block_table
        column = first * self.blocks_per_span + torch.arange(spans * self.blocks_per_span, device=device)
        sequence = torch.tensor([piece.sequence for piece in pieces], device=device)[:, None]
        blocks = table[sequence, column.clamp(max=table.shape[1] - 1)].long()
        blocks = torch.where(column < used[:, None], blocks, self.cache.zero_block)
        gather = (blocks[:, None, :] + self._head_offsets[:, None]).flatten()

        # The first query sees least: spans before its own are open to all, unless a window closes.
        masked_from = 0 if window is not None else min((piece.position + 1) // self.span for piece in pieces)
        masked_from = min(masked_from, spans - 1)
        start = torch.tensor([piece.position for piece in pieces], device=device)
        token = torch.arange(query_rows, device=device).div(self.group_size, rounding_mode="floor")
        query = start[:, None] + token.clamp(max=tokens - 1)
        key = (first + masked_from) * self.span + torch.arange(
            (spans - masked_from) * self.span, device=device
        )
        hidden = key[:, None, :] > query[:, :, None]
        if window is not None:
            hidden |= key[:, None, :] <= query[:, :, None] - window
        hidden = hidden.view(len(pieces), query_rows, spans - masked_from, self.span).transpose(1, 2)
        return Group(
            rows, len(pieces), tokens, spans, query_rows, gather, masked_from, hidden[:, None].contiguous()
        )

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        shape = self.cache.shape
        rows = (len(self.write_index), shape.head_size)
        self.cache.k_rows[layer].index_copy_(0, self.write_index, k.to(shape.dtype).reshape(rows))
        self.cache.v_rows[layer].index_copy_(0, self.write_index, v.to(shape.dtype).reshape(rows))

    def attend(self, layer: int, q: Tensor, group: Group) -> None:
        shape, span = self.cache.shape, self.span
        heads, size, spans, padded = shape.kv_heads, shape.head_size, group.spans, group.query_rows
        batch, tokens, share = group.batch, group.tokens, self.group_size
        real = tokens * share
        items = batch * heads
        products = items * spans
        scratch = self.scratch

        query = scratch.take("query", batch, heads, spans, padded, size)
        query[:, :, :, real:] = 0
        scaled = (q[group.rows] * self.scale).view(batch, tokens, heads, share, size).transpose(1, 2)
        query[:, :, :, :real].copy_(scaled.reshape(batch, heads, 1, real, size).expand(-1, -1, spans, -1, -1))

        scores = scratch.take("scores", products, padded, span)
        keys = self._gather(self.cache.k_blocks[layer], group).view(products, span, size)
        torch.bmm(query.view(products, padded, size), keys.transpose(1, 2), out=scores)
        by_span = scores.view(batch, heads, spans, padded, span)
        by_span[:, :, group.masked_from :].masked_fill_(group.hidden, float("-inf"))

        weights = scratch.take("weights", products, padded, span)
        if spans == 1:
            torch.softmax(scores, -1, out=weights)
        else:
            # One row a query for the softmax, one matrix a span for the products.
            by_query = weights.view(items, padded, spans, span)
            by_query.copy_(scores.view(items, spans, padded, span).transpose(1, 2))
            flat = (items * padded, spans * span)
            torch.softmax(weights.view(flat), -1, out=scores.view(flat))
            weights.view(items, spans, padded, span).copy_(
                scores.view(items, padded, spans, span).transpose(1, 2)
            )

        parts = scratch.take("parts", products, padded, size)
        torch.bmm(
            weights, self._gather(self.cache.v_blocks[layer], group).view(products, span, size), out=parts
        )
        parts = parts.view(items, spans, padded, size)
        total = parts[:, 0]
        for index in range(1, spans):
            total.add_(parts[:, index])
        result = total[:, :real].view(batch, heads, tokens, share, size).transpose(1, 2)
        if isinstance(group.rows, slice):
            self.out[group.rows].view(result.shape).copy_(result)
        else:
            self.out[group.rows] = result.reshape(batch * tokens, self.heads * size).to(self.out.dtype)

    def _gather(self, blocks: Tensor, group: Group) -> Tensor:
        """The group's blocks in float32; the memory is used again for the next."""
        found = self.scratch.take("float", len(group.gather), blocks.shape[1])
        if blocks.dtype == torch.float32:
            return torch.index_select(blocks, 0, group.gather, out=found)
        raw = self.scratch.take("raw", len(group.gather), blocks.shape[1], dtype=blocks.dtype)
        torch.index_select(blocks, 0, group.gather, out=raw)
        return found.copy_(raw)
