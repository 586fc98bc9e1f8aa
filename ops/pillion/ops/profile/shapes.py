"""What is measured: steps along each axis of the cost model, and mixes like those of real loads, by seed."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, log

from pillion.contracts.entries import Facts
from pillion.scheduler.work import of_rows
from pillion.steptime import Work

_AXIS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072)
_LONG = 4096  # positions: the farthest that a step's context reaches
SHORT = 32  # positions of a decode that is to cost little attention


@dataclass(frozen=True, slots=True)
class Chunk:
    """`count` tokens from position `start` on: what lies before is a prefix hit, or was computed before."""

    start: int
    count: int
    whole: bool = False  # its prompt ends with it: one row is sampled


@dataclass(frozen=True, slots=True)
class Shape:
    """A step to be measured: decodes by the positions before each, and chunks."""

    contexts: tuple[int, ...] = ()
    chunks: tuple[Chunk, ...] = ()

    @property
    def work(self) -> Work:
        chunks = self.chunks
        return of_rows(
            len(self.contexts),
            [*self.contexts, *(chunk.start for chunk in chunks)],
            [1] * len(self.contexts) + [chunk.count for chunk in chunks],
            [1] * len(self.contexts) + [int(chunk.whole) for chunk in chunks],
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """What an executor can be asked for. `positions`: of KV, whose memory is really there."""

    rows: int  # of a step
    slots: int
    length: int  # tokens of a sequence
    positions: int
    block: int
    tile: int

    @classmethod
    def of(cls, facts: Facts, positions: int) -> "Limits":
        return cls(
            facts.max_step_tokens,
            facts.max_num_seqs,
            # A few tokens are left for the repeats.
            min(facts.max_model_len - 16, _LONG),
            positions,
            facts.block_size,
            facts.tile,
        )


def sizes(limits: Limits) -> list[int]:
    """Row counts at which the curve of a step's rows gets a point."""
    return [size for size in _AXIS if size < limits.rows] + [limits.rows]


def axes(limits: Limits) -> list[Shape]:
    """Each size by itself: rows of a chunk, rows of decodes, tiles' borders, context of either, sequences."""
    shapes = []
    for rows in sizes(limits):
        if rows <= limits.length:
            shapes.append(Shape(chunks=(Chunk(0, rows),)))
        if rows <= limits.slots:
            shapes.append(Shape(contexts=(SHORT,) * rows))
    for tiles in (1, 2, 4):
        rows = tiles * limits.tile + 1  # one row more than fits
        if limits.tile > 1 and rows <= min(limits.rows, limits.length):
            shapes.append(Shape(chunks=(Chunk(0, rows),)))
    far = (512, 1024, 3072)
    shapes += [Shape(contexts=(context,) * decodes) for decodes in (1, 8, 32) for context in far]
    shapes += [
        Shape(chunks=(Chunk(_aligned(start, limits), count, whole=True),))
        for count in (64, 256, 512)
        for start in far
    ]
    shapes += [Shape(chunks=(Chunk(0, 16, whole=True),) * many) for many in (2, 4, 8)]
    return [shape for shape in shapes if fits(shape, limits)]


def mixes(limits: Limits, count: int, seed: int) -> list[Shape]:
    """Ragged steps: decodes of all lengths beside no, one or a few chunks, some behind a long prefix."""
    draw = random.Random(seed)
    made: Iterator[Shape] = (_mix(draw, limits) for _ in range(100 * count))
    fitting = (shape for shape in made if shape.work.rows and fits(shape, limits))
    return [shape for _, shape in zip(range(count), fitting, strict=False)]


def fits(shape: Shape, limits: Limits) -> bool:
    """Whether an executor of these limits can be asked for the step."""
    work = shape.work
    lengths = [*shape.contexts, *(chunk.start + chunk.count for chunk in shape.chunks)]
    return (
        work.rows <= limits.rows
        and work.decodes + work.chunks <= limits.slots
        and max(lengths) <= limits.length
        and sum(lengths) <= limits.positions
    )


def _mix(draw: random.Random, limits: Limits) -> Shape:
    decodes = draw.choice((0, 1, 1, 1)) * _between(draw, 1, limits.slots)
    mean = _between(draw, SHORT, limits.length // 2)
    contexts = tuple(_between(draw, max(mean // 4, 1), min(2 * mean, limits.length)) for _ in range(decodes))
    chunks = []
    left = limits.rows - decodes
    for _ in range(draw.choice((0, 1, 1, 1, 2, 3) if decodes else (1, 1, 2, 3))):
        if left < 1:
            break
        count = _between(draw, min(8, left), left)
        start = draw.choice((0, 0, 1)) * _aligned(_between(draw, 1, limits.length), limits)
        chunks.append(Chunk(start, count, draw.random() < 0.4))
        left -= count
    return Shape(contexts, tuple(chunks))


def _between(draw: random.Random, low: int, high: int) -> int:
    """As many small as large ones: the logarithm is uniform."""
    return min(round(exp(draw.uniform(log(low), log(max(high, low))))), max(high, low))


def _aligned(position: int, limits: Limits) -> int:
    """A block's border: a prompt goes on behind blocks that are cached."""
    return position // limits.block * limits.block
