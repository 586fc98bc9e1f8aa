"""Quantiles of any number of times in the memory of a few thousand counters."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

GROWTH = 1.01
"""A bucket ends 1 % above where it begins; its middle is told, which is within half of that."""
LEAST, MOST = 1e-6, 1e6
"""Seconds. What is shorter counts as nothing: tokens that came together have a gap of 0."""

_LOG = math.log(GROWTH)
_BUCKETS = math.ceil(math.log(MOST / LEAST) / _LOG)


class Histogram:
    """Counts of times in seconds. The least, the most and the sum are exact."""

    __slots__ = ("_counts", "count", "least", "most", "nothing", "total")

    def __init__(self) -> None:
        self._counts = np.zeros(_BUCKETS, np.int64)
        self.count = 0
        self.nothing = 0  # of which shorter than LEAST
        self.total = 0.0
        self.least = math.inf
        self.most = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """So many of the same. Raises ValueError for what is no time."""
        if not math.isfinite(seconds):
            raise ValueError(f"{seconds} is no time")
        seconds = max(seconds, 0.0)
        if seconds < LEAST:
            self.nothing += count
        else:
            self._counts[min(int(math.log(seconds / LEAST) / _LOG), _BUCKETS - 1)] += count
        self._note(count, seconds * count, seconds, seconds)

    def extend(self, seconds: Sequence[float] | npt.NDArray[np.float64]) -> None:
        """The same as `add` of each. Raises ValueError for what is no time."""
        if not len(seconds):
            return
        values = np.maximum(np.asarray(seconds, np.float64), 0.0)
        if not np.isfinite(values).all():
            raise ValueError("not every value is a time")
        long = values[values >= LEAST]
        places = np.minimum((np.log(long / LEAST) / _LOG).astype(np.int64), _BUCKETS - 1)
        np.add.at(self._counts, places, 1)
        self.nothing += len(values) - len(long)
        self._note(len(values), float(values.sum()), float(values.min()), float(values.max()))

    def update(self, other: "Histogram") -> None:
        """Adds all that the other counted."""
        self._counts += other._counts
        self.nothing += other.nothing
        self._note(other.count, other.total, other.least, other.most)

    def _note(self, count: int, total: float, least: float, most: float) -> None:
        self.count += count
        self.total += total
        self.least, self.most = min(self.least, least), max(self.most, most)

    @property
    def mean(self) -> float:
        """Raises ZeroDivisionError for none."""
        return self.total / self.count

    def quantile(self, share: float) -> float:
        """Nearest rank, within 1 %. Raises IndexError for none."""
        if not self.count:
            raise IndexError("a quantile of nothing")
        rank = max(math.ceil(share * self.count), 1)
        if rank >= self.count:
            return self.most
        if rank <= self.nothing:
            return 0.0
        place = int(np.searchsorted(np.cumsum(self._counts), rank - self.nothing))
        return min(max(_middle(place), self.least), self.most)

    def curve(self) -> list[tuple[float, float]]:
        """The cumulative distribution: times, and the share that is no longer. One point a filled bucket."""
        if not self.count:
            return []
        found = [(0.0, self.nothing / self.count)] if self.nothing else []
        reached = self.nothing
        for place in np.flatnonzero(self._counts):
            reached += int(self._counts[place])
            found.append((min(max(_middle(int(place)), self.least), self.most), reached / self.count))
        found[-1] = (self.most, 1.0)
        return found

    def summary(self) -> dict[str, float] | None:
        """Seconds. None where nothing was counted."""
        if not self.count:
            return None
        quantiles = {name: self.quantile(share) for name, share in _SHARES.items()}
        return {"count": self.count, "mean": self.mean, **quantiles, "worst": self.most}


_SHARES = {"median": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}


def _middle(place: int) -> float:
    return float(LEAST * GROWTH ** (place + 0.5))


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank, exact. Raises IndexError for no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(math.ceil(share * len(ordered)), 1) - 1)]
