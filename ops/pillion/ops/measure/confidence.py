"""How sure a mean of a few repeats is: Student's t, 95 %."""

import math
import statistics
from collections.abc import Sequence

_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""The 97.5 % quantile by degrees of freedom, from 1."""


def mean_of(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and the half of its 95 % interval; None for one value. Raises StatisticsError for none."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, None
    return mean, _quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def difference(before: Sequence[float], after: Sequence[float]) -> tuple[float, float | None]:
    """How much higher the mean is after, and the half width of that (Welch's); None without repeats of both.

    Raises StatisticsError for no values.
    """
    more = statistics.fmean(after) - statistics.fmean(before)
    if min(len(before), len(after)) < 2:
        return more, None
    a, b = (statistics.variance(values) / len(values) for values in (before, after))
    if not a + b:
        return more, 0.0
    freedom = (a + b) ** 2 / (a**2 / (len(before) - 1) + b**2 / (len(after) - 1))
    return more, _quantile(int(freedom)) * math.sqrt(a + b)


def _quantile(freedom: int) -> float:
    return _T[min(max(freedom, 1), len(_T)) - 1]
