"""The last minute, second by second: what steps carried, and what streams felt. Pure; times are passed in."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log2

from pillion.contracts.entries import Heartbeat

SPAN = 60  # seconds, the running one left out
FINEST = 0.0005  # seconds; shorter times are as good as none
WIDTH = 8  # buckets to a doubling: quantiles are right within 5 %
ROW = 4  # buckets to a row of the heat map
LAST = 20 * WIDTH  # the bucket of all that is longer than eight minutes


@dataclass(slots=True)
class _Carried:
    """In one second."""

    second: int
    steps: int = 0
    prefill: int = 0  # tokens
    decode: int = 0
    seconds: float = 0.0  # that the steps took
    budget: int = 0  # tokens, of the latest step
    running: int = 0  # sequences, the most
    kv: float = 0.0  # share of the blocks in use, the most


@dataclass(slots=True)
class Steps:
    """What one replica's steps carried: the differences of the totals in its heartbeats."""

    _seconds: deque[_Carried] = field(default_factory=lambda: deque(maxlen=SPAN + 1))

    def heard(self, former: Heartbeat | None, beat: Heartbeat, now: float) -> None:
        """`former`: the beat before this one; totals of another process begin anew."""
        if not self._seconds or self._seconds[-1].second != int(now):
            self._seconds.append(_Carried(int(now)))
        carried = self._seconds[-1]
        carried.budget = beat.step_budget
        carried.running = max(carried.running, beat.running)
        carried.kv = max(carried.kv, beat.kv_usage)
        if former is None or former.epoch != beat.epoch:
            return
        carried.steps += max(beat.steps - former.steps, 0)
        carried.prefill += max(beat.prefilled - former.prefilled, 0)
        carried.decode += max(beat.decoded - former.decoded, 0)
        carried.seconds += max(beat.step_time - former.step_time, 0.0)

    def minute(self, now: float) -> dict[str, list[float]]:
        """A column for each figure, a row for each second, the oldest first; 0 where nothing was told."""
        known = {each.second: each for each in self._seconds}
        rows = [known.get(second) or _Carried(second) for second in range(int(now) - SPAN, int(now))]
        return {
            "steps": [row.steps for row in rows],
            "prefill": [row.prefill for row in rows],
            "decode": [row.decode for row in rows],
            "seconds": [round(row.seconds, 4) for row in rows],
            "budget": [row.budget for row in rows],
            "running": [row.running for row in rows],
            "kv": [round(row.kv, 4) for row in rows],
        }


@dataclass(slots=True)
class _Second:
    second: int
    counts: dict[int, int] = field(default_factory=dict)  # by bucket
    worst: float = 0.0


class Spread:
    """How times were spread over the last minute. Its memory is bounded, whatever comes."""

    def __init__(self) -> None:
        self._seconds: deque[_Second] = deque(maxlen=SPAN + 1)

    def add(self, value: float, now: float, count: int = 1) -> None:
        """`value` seconds, so many times."""
        second = int(now)
        if not self._seconds or self._seconds[-1].second != second:
            self._seconds.append(_Second(second))
        current, bucket = self._seconds[-1], _bucket(value)
        current.counts[bucket] = current.counts.get(bucket, 0) + count
        current.worst = max(current.worst, value)

    def summary(self, now: float) -> dict[str, float | None]:
        """Count, quantiles and the worst of the last minute, the running second included."""
        recent = [each for each in self._seconds if each.second > now - SPAN - 1]
        merged: dict[int, int] = {}
        for each in recent:
            for bucket, count in each.counts.items():
                merged[bucket] = merged.get(bucket, 0) + count
        worst = max((each.worst for each in recent), default=0.0)
        quantiles = {f"p{share}": _quantile(merged, share / 100, worst) for share in (50, 90, 99)}
        count = sum(merged.values())
        return {"count": count, **quantiles, "worst": round(worst, 5) if count else None}

    def worsts(self, now: float) -> list[float]:
        """The worst of each second, the oldest first; 0 where nothing came."""
        known = {each.second: each.worst for each in self._seconds}
        return [round(known.get(second, 0.0), 4) for second in range(int(now) - SPAN, int(now))]

    def heat(self, now: float) -> dict[str, object]:
        """`bounds`: the upper ends of the rows, in seconds; `counts`: a list of them for each second, the
        oldest first. Rows below and above all that came are left out.
        """
        columns: dict[int, dict[int, int]] = {}
        for each in self._seconds:
            rows = columns.setdefault(each.second, {})
            for bucket, count in each.counts.items():
                row = (bucket + ROW - 1) // ROW
                rows[row] = rows.get(row, 0) + count
        seconds = range(int(now) - SPAN, int(now))
        used = [row for second in seconds for row in columns.get(second, ())]
        shown = range(min(used), max(used) + 1) if used else range(0)
        return {
            "bounds": [round(FINEST * 2 ** (row * ROW / WIDTH), 5) for row in shown],
            "counts": [[columns.get(second, {}).get(row, 0) for row in shown] for second in seconds],
        }


class Recent:
    """What the streams of one gateway felt. Touched by tasks of one event loop only."""

    def __init__(self) -> None:
        self.ttft = Spread()
        self.tbt = Spread()


def _bucket(value: float) -> int:
    return 0 if value <= FINEST else min(1 + int(WIDTH * log2(value / FINEST)), LAST)


def _quantile(counts: Mapping[int, int], share: float, worst: float) -> float | None:
    """The middle of the bucket in which it lies; None of nothing."""
    left = share * sum(counts.values())
    for bucket in sorted(counts):
        left -= counts[bucket]
        if left <= 0:
            middle = FINEST * 2 ** ((bucket - 0.5) / WIDTH) if bucket else 0.0
            return round(min(middle, worst), 5)
    return None
