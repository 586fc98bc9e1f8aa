"""The cost model of a step: a sum of terms, none of which falls as its size grows.

    seconds = base + rows(n) + tile_seconds * ceil(n / tile) + sampled(s)
            + pair * pairs + context * positions + decode * decodes + chunk * chunks

`rows` and `sampled` are curves: what weights cost however few rows there are, then what each row adds.
"""

import hashlib
from bisect import bisect_left
from typing import Annotated

import msgspec
from msgspec import Meta

from .work import Work

Amount = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]


class Curve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line through points, from (0, 0) on; behind the last point it goes on as between the last two.

    The first point may stand at 1 and high: what the first row costs.
    """

    at: tuple[Count, ...] = ()  # sizes, rising
    seconds: tuple[Amount, ...] = ()  # at each; none is less than the one before

    def __post_init__(self) -> None:
        """Raises ValueError (a ValidationError where a file is read)."""
        if len(self.at) != len(self.seconds):
            raise ValueError(f"{len(self.at)} sizes, but {len(self.seconds)} times")
        if any(b <= a for a, b in zip((0, *self.at), self.at, strict=False)):
            raise ValueError("the sizes of a curve do not rise")
        if any(b < a for a, b in zip((0.0, *self.seconds), self.seconds, strict=False)):
            raise ValueError("a curve falls")

    def __call__(self, size: int) -> float:
        at, seconds = self.at, self.seconds
        if not at or size <= 0:
            return 0.0
        right = bisect_left(at, size)
        if right == len(at):
            right -= 1
        if at[right] == size:
            return seconds[right]
        x, y = (at[right - 1], seconds[right - 1]) if right else (0, 0.0)
        slope = (seconds[right] - y) / (at[right] - x)
        return max(y + (size - x) * slope, 0.0)


class Provenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was measured, where and when."""

    model: str = ""
    fingerprint: str = ""  # the executor's: weights, dtype, backend build, instruction set, TP size
    hardware: str = ""  # the processor's name and how many of its cores
    dtype: str = ""
    backend: str = ""
    threads: Count = 0  # 0: not known
    version: str = ""  # of Pillion
    seed: int = 0
    date: str = ""  # UTC, ISO 8601


class Error(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Relative errors on steps that the fit has not seen: |predicted - measured| / measured."""

    steps: Count = 0  # distinct steps held out; each one's measured time is the median of its repeats
    median: Amount = 0.0
    p95: Amount = 0.0
    spread: Amount = 0.0  # the machine's own: (P90 - P10) / median of a step's repeats, median of all


class Ways(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Times around a step that do not depend on it, seconds."""

    inward: Amount = 0.0  # from a client's request to the scheduler
    outward: Amount = 0.0  # from a step's end to the client that gets its token
    gap: Amount = 0.0  # the executor's idle time between steps when the next plan is there
    turn: Amount = 0.0  # to the executor and back for a plan, beside the step


class StepTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Predicts the seconds of a forward pass. Frozen: what is learned while serving is kept elsewhere."""

    base: Amount = 0.0
    rows: Curve = Curve()
    tile: Annotated[int, Meta(ge=1)] = 1
    tile_seconds: Amount = 0.0  # for each tile of rows that is begun
    sampled: Curve = Curve()
    pair: Amount = 0.0
    context: Amount = 0.0
    decode: Amount = 0.0
    chunk: Amount = 0.0
    ratios: tuple[Amount, ...] = ()  # quantiles of measured / predicted, from the least to the largest
    error: Error = Error()
    ways: Ways = Ways()
    provenance: Provenance = Provenance()

    def seconds(self, work: Work) -> float:
        """Never negative, and no less where any field of `work` is more."""
        return (
            self.base
            + self.rows(work.rows)
            + self.tile_seconds * -(-work.rows // self.tile)
            + self.sampled(work.sampled)
            + self.pair * work.pairs
            + self.context * work.context
            + self.decode * work.decodes
            + self.chunk * work.chunks
        )

    @property
    def hash(self) -> str:
        """Of all that is in it."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()[:16]
