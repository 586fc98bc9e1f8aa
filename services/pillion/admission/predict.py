"""When a request that came now would have its first token. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from typing import NamedTuple

from pillion.admission.line import Ahead


class Server(NamedTuple):
    """A replica that could run it."""

    rate: float  # prompt tokens/s beside the decodes that run; 0: not known
    load: int  # prompt tokens that it has not computed
    seats: int  # sequences that keep their pace; 0: not known
    held: int  # sequences that it has, running or not
    step_seconds: float  # a token of a sequence takes one
    idle_rate: float  # prompt tokens/s with nothing running


@dataclass(frozen=True, slots=True)
class Forecast:
    """Seconds."""

    wait: float  # until all that goes before is computed, and a seat is free
    own: float  # for its own prompt
    alone: float  # for its own prompt with nothing running

    @property
    def ttft(self) -> float:
        return self.wait + self.own

    def excess(self, target: float, correction: float = 1.0) -> float:
        """By how much the target is missed; 0 where it is kept.

        A prompt that would take longer than the target even alone is measured by twice that time. So what
        comes alone is never too late.
        """
        if not self.wait:
            return 0.0
        return max(0.0, correction * self.ttft - max(target, 2 * self.alone))


def forecast(ahead: Ahead, suffix: int, servers: Sequence[Server], output: float) -> Forecast | None:
    """`suffix`: tokens of its own prompt to compute before its first token; `output`: mean tokens of a
    sequence, for which it keeps its seat. None: no rate is known.
    """
    total = fastest = alone = leaving = 0.0
    loads = missing = 0
    seated = True
    for rate, load, seats, held, step_seconds, idle_rate in servers:
        total += rate
        loads += load
        fastest = rate if rate > fastest else fastest
        idle = idle_rate or rate
        alone = idle if idle > alone else alone
        seated = seated and seats > 0
        missing += held - seats
        if step_seconds > 0:
            leaving += seats / step_seconds
    if total <= 0:
        return None
    wait = (loads + ahead.tokens) / total
    missing += ahead.sequences + 1
    if seated and missing > 0 and leaving > 0 and output > 0:
        wait = max(wait, missing * output / leaving)
    return Forecast(wait, suffix / fastest, suffix / alone)


class Correction:
    """By what a forecast must be multiplied so that nine in ten come true: followed from what came true.

    Each outcome moves the factor a little, up or down as it lay above or below; where the moves cancel out is
    the quantile (stochastic approximation, Robbins and Monro 1951, in the logarithm). It never goes below 1.
    """

    SHARE = 0.9
    STEP = 0.1
    MOST = 3.0

    def __init__(self) -> None:
        self.factor = 1.0

    def learn(self, predicted: float, came: float) -> None:
        """Seconds."""
        move = self.SHARE if came > self.factor * predicted else self.SHARE - 1
        self.factor = min(max(self.factor * exp(self.STEP * move), 1.0), self.MOST)
