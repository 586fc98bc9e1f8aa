"""What became of one request, by the times of its tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from .histogram import percentile

FINISHED, FAILED, UNFINISHED = "finished", "failed", "unfinished"


@dataclass(frozen=True, slots=True)
class Slo:
    """Targets in seconds: of the first token, and of the 99th percentile of each request's own gaps."""

    ttft: float
    tbt: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request that was sent, or was to be. Seconds; None where there is none of it.

    All times count from `at`, when it was intended to be sent; `lag` is how much later it was.
    """

    at: float  # from the start of the run
    prompt: int  # tokens
    output: int  # tokens that came
    result: str  # FINISHED, the refusal's code, FAILED, or UNFINISHED: it ran when the run ended
    cached: int = 0  # prompt tokens that came from a prefix cache
    delay: float | None = None  # scheduling delay, where it is known
    ttft: float | None = None
    e2e: float | None = None  # of finished ones
    tpot: float | None = None
    gap_p99: float | None = None
    gap_worst: float | None = None
    lag: float = 0.0

    @property
    def rejected(self) -> bool:
        return self.result not in (FINISHED, FAILED, UNFINISHED)

    def met_ttft(self, slo: Slo) -> bool:
        return self.ttft is not None and self.ttft <= slo.ttft

    def met_tbt(self, slo: Slo) -> bool:
        """One token has no gap, and misses nothing."""
        return self.ttft is not None and (self.gap_p99 is None or self.gap_p99 <= slo.tbt)

    def good(self, slo: Slo) -> bool:
        return self.result == FINISHED and self.met_ttft(slo) and self.met_tbt(slo)


def outcome(
    at: float,
    tokens: Sequence[float],
    *,
    prompt: int,
    result: str,
    cached: int = 0,
    delay: float | None = None,
    lag: float = 0.0,
) -> tuple[Outcome, list[float]]:
    """Of a request that was due at `at` and whose tokens came at `tokens`, on one clock; and its gaps."""
    gaps = [after - before for before, after in pairwise(tokens)]
    first, last = (tokens[0], tokens[-1]) if tokens else (None, None)
    return (
        Outcome(
            at=at,
            prompt=prompt,
            output=len(tokens),
            result=result,
            cached=cached,
            delay=delay,
            ttft=None if first is None else first - at,
            e2e=last - at if last is not None and result == FINISHED else None,
            tpot=sum(gaps) / len(gaps) if gaps else None,
            gap_p99=percentile(gaps, 0.99) if gaps else None,
            gap_worst=max(gaps, default=None),
            lag=lag,
        ),
        gaps,
    )
