"""Row counts at which a row's bits do not depend on how many rows are beside it.

A GEMM library chooses its kernel by the number of rows, and kernels differ in the order of their sums. So a
step is padded to a count from a short list, and a count is in the list only if a check found it bit-equal to
the largest one, for every weight shape of the model.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MOST_ROWS_COMPARED = 512


@dataclass(frozen=True, slots=True)
class RowCounts:
    """The counts that may be used, ascending, and those that were tried and differ."""

    counts: tuple[int, ...]
    refused: tuple[int, ...] = ()

    def up(self, rows: int) -> int:
        """The smallest usable count that holds `rows`. Raises ValueError beyond the largest."""
        if rows > self.counts[-1]:
            raise ValueError(f"{rows} rows are more than the {self.counts[-1]} that a step may have")
        return self.counts[bisect_left(self.counts, rows)]


def candidates(most: int) -> list[int]:
    """Counts worth trying: dense where padding would cost most."""
    counts = [1, 2, *range(4, 32, 4), *range(32, 64, 8), *range(64, 512, 16), *range(512, most, 64), most]
    return sorted({count for count in counts if count <= most})


def few_candidates(most: int) -> list[int]:
    """Fewer, for a function that is costly to check: the output head."""
    return sorted({count for count in (1, 4, 8, 16, 24, *range(32, most, 16), most) if count <= most})


def check(functions: Sequence[tuple[Callable[[Tensor], Tensor], Tensor]], counts: Iterable[int]) -> RowCounts:
    """Tries each count on each function with rows of its sample input [rows, n], against the largest count.

    Every row of the largest count is compared: where results are rounded to 16 bits, another order of sums
    shows in one element of thousands.
    """
    tried = sorted(counts)
    most = tried[-1]
    refused: set[int] = set()
    with torch.inference_mode():
        for function, sample in functions:
            x = sample.repeat(-(-most // len(sample)), 1)[:most]
            whole = function(x)
            for count in tried[:-1]:
                if count not in refused and not _same(function, x, whole, count):
                    refused.add(count)
    return RowCounts(tuple(count for count in tried if count not in refused), tuple(sorted(refused)))


def _same(function: Callable[[Tensor], Tensor], x: Tensor, whole: Tensor, count: int) -> bool:
    for first in range(0, len(x), count):
        part = slice(min(first, len(x) - count), min(first, len(x) - count) + count)
        if not torch.equal(function(x[part]), whole[part]):
            return False
    return True


def sample_rows(width: int, like: Tensor) -> Tensor:
    """Rows as activations are: [MOST_ROWS_COMPARED, width] in the dtype and on the device of `like`."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(MOST_ROWS_COMPARED, width, generator=generator)
    return rows.to(like.device, like.dtype)
