"""When requests arrive: at random, as they did in a trace, or as others end."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile

from .arrival import Arrival
from .lengths import Source

Times = Callable[[random.Random], Iterator[float]]
"""Draws the times of an endless process, seconds from the start, in order."""


@dataclass(frozen=True, slots=True)
class Closed:
    """So many clients, each with one request after the other, `think` seconds after the end of the last."""

    clients: int
    think: float = 0.0


def poisson(rate: float) -> Times:
    """`rate` a second, each for itself."""
    return gamma(rate, 1.0)


def gamma(rate: float, cv: float) -> Times:
    """`rate` a second, with gaps of a gamma distribution. `cv` is their standard deviation over their mean: 1
    for a Poisson process, more in bursts, less in step. Raises ValueError.
    """
    if rate <= 0 or cv <= 0:
        raise ValueError("a rate and its coefficient of variation must be above 0")

    def times(random_: random.Random) -> Iterator[float]:
        shape = 1 / cv**2
        at = 0.0
        while True:
            at += random_.expovariate(rate) if cv == 1 else random_.gammavariate(shape, 1 / (rate * shape))
            yield at

    return times


def replayed(trace: Sequence[Arrival], scale: float = 1.0) -> Iterator[Arrival]:
    """As it was, `scale` times as fast."""
    return (replace(arrival, at=arrival.at / scale) for arrival in trace)


def arrivals(
    random_: random.Random,
    source: Source,
    times: Times,
    *,
    seconds: float | None = None,
    requests: int | None = None,
) -> Iterator[Arrival]:
    """Requests until so many seconds have passed, or so many were drawn, or without end."""
    due: Iterator[float] = islice(times(random_), requests)
    if seconds is not None:
        due = takewhile(lambda at: at < seconds, due)
    return (replace(source.draw(random_), at=at) for at in due)
