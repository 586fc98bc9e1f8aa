"""The load that is offered: which requests, and when each is due. Drawn beforehand, all from the seed."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import Any

from pillion.ops.bench.server import Job
from pillion.ops.traces import LENGTHS, Arrival, Rows, Source, arrivals, gamma, read, replayed, timed, tokens

_SEEDS = 1_000_003  # runs of one seed: each has prompts of its own, and none hits another's


class NoLoad(Exception):
    """What was asked for does not go together. One line that says what to change."""


@dataclass(frozen=True, slots=True)
class Offered:
    """Requests at `rate` a second drawn from a trace's rows or from `lengths`; without one, the trace itself.

    At another rate the same requests come in the same order, further apart.
    """

    trace: Sequence[Arrival] | None
    lengths: str
    cv: float = 1.0  # standard deviation of the gaps over their mean
    scale: float = 1.0  # of a trace that is replayed: so many times as fast
    requests: int | None = None
    seconds: float | None = None  # those that are due later are left out
    longest: int | None = None  # tokens, prompt and output: longer requests are left out
    seed: int = 1

    def due(self, rate: float | None, repeat: int = 0) -> list[Arrival]:
        """In order. Raises NoLoad for none."""
        if rate is None:
            drawn = replayed(self._fitting(), self.scale)
        else:
            random_ = random.Random(f"{self.seed} {repeat}")
            unit = arrivals(random_, self._source(), gamma(1.0, self.cv))
            drawn = (replace(each, at=each.at / rate) for each in unit)
        if self.seconds is not None:
            end = self.seconds
            drawn = takewhile(lambda each: each.at < end, drawn)
        found = list(islice(drawn, self.requests))
        if not found:
            raise NoLoad("no request is due within --seconds: give more, or a higher --rate")
        return found

    def _source(self) -> Source:
        if self.trace is not None:
            return Rows(self._fitting())
        shape = LENGTHS[self.lengths]
        try:
            most = self.longest
            return shape if most is None else replace(shape, total=min(most, shape.total or most))
        except ValueError as error:
            raise NoLoad(f"{error}; give a higher --longest") from None

    def _fitting(self) -> Sequence[Arrival]:
        """Of the trace."""
        rows, most = self.trace or (), self.longest
        found = [each for each in rows if most is None or each.prompt + each.output <= most]
        if not found:
            raise NoLoad(f"no request of the trace has at most {most} tokens; give a higher --longest")
        return found

    def jobs(self, due: Sequence[Arrival], run: int) -> Iterator[Job]:
        """With prompts; no two runs have one in common. Made when they are asked for."""
        seed = self.seed * _SEEDS + run
        for index, each in enumerate(due):
            yield Job([*tokens(seed, index, each)], each.output, each.at, each.priority, each.tenant)

    def told(self) -> dict[str, Any]:
        """For the report."""
        source = self.lengths if self.trace is None else f"a trace of {len(self.trace)} requests"
        limits = {name: getattr(self, name) for name in ("requests", "seconds", "longest")}
        return {"requests from": source, "gaps' cv": self.cv, **{k: v for k, v in limits.items() if v}}


def offered(
    trace: str | None, lengths: str | None, rates: Sequence[float], *, limits: dict[str, Any]
) -> Offered:
    """From flags; `limits` are the rest of `Offered`. Raises NoLoad, BadTrace."""
    if trace is not None and lengths is not None:
        raise NoLoad("give --trace or --lengths, not both")
    if lengths is not None and lengths not in LENGTHS:
        raise NoLoad(f"--lengths {lengths} is unknown; there is {', '.join(sorted(LENGTHS))}")
    rows = None if trace is None else read(trace)
    if not rates and rows is None:
        raise NoLoad("say how requests arrive: give --rate or a --trace")
    if not rates and not timed(rows or ()):
        raise NoLoad(f"{trace} has no arrived_at: give --rate")
    if rates and rows is None and not (limits.get("requests") or limits.get("seconds")):
        limits = limits | {"seconds": 60.0}
    if rates and rows is not None and not (limits.get("requests") or limits.get("seconds")):
        limits = limits | {"requests": len(rows)}
    return Offered(rows, lengths or "chats", **limits)
