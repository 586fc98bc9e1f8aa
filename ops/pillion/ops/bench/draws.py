"""What a load is drawn from: lengths, prompts and arrival times, all fixed beforehand by a seed."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

IDS = range(1000, 40_000)
"""Ordinary tokens of every large vocabulary."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens: lognormal with this median and 90th percentile, clipped."""

    median: float
    p90: float
    low: int
    high: int

    def draw(self, random_: random.Random) -> int:
        sigma = math.log(self.p90 / self.median) / 1.2816
        drawn = random_.lognormvariate(math.log(self.median), sigma)
        return int(min(max(drawn, self.low), self.high))


@dataclass(frozen=True, slots=True)
class Shape:
    """Lengths of requests."""

    prompt: Lengths
    output: Lengths

    def draw(self, random_: random.Random) -> "Job":
        """With a prompt of random token ids, so that none hits a prefix."""
        size = self.prompt.draw(random_)
        return Job(prompt(random_, size), self.output.draw(random_))


@dataclass(frozen=True, slots=True)
class Job:
    """One request: token ids, and how many tokens to ask for."""

    prompt: list[int]
    output: int


@dataclass(frozen=True, slots=True)
class Arrival:
    at: float  # seconds from the start
    job: Job


def prompt(random_: random.Random, length: int) -> list[int]:
    return random_.choices(IDS, k=length)


def arrivals(random_: random.Random, rate: float, seconds: float, shape: Shape) -> list[Arrival]:
    """A Poisson process of `rate` a second."""
    drawn, at = [], random_.expovariate(rate)
    while at < seconds:
        drawn.append(Arrival(at, shape.draw(random_)))
        at += random_.expovariate(rate)
    return drawn


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank. Raises IndexError for no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


CHATS = Shape(Lengths(170, 500, 8, 1500), Lengths(60, 150, 4, 400))
SUMMARIES = Shape(Lengths(900, 1600, 64, 1800), Lengths(40, 90, 4, 200))
