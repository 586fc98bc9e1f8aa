"""How long prompts and outputs are, tokens: shapes by name, and the rows of a trace."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from .arrival import Arrival


class Draw(Protocol):
    @property
    def low(self) -> int: ...

    def draw(self, random_: random.Random) -> int: ...


class Source(Protocol):
    """What requests are drawn from; they arrive at 0 until somebody says when."""

    def draw(self, random_: random.Random) -> Arrival: ...


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lognormal with this median and 90th percentile, clipped."""

    median: float
    p90: float
    low: int
    high: int

    def draw(self, random_: random.Random) -> int:
        sigma = math.log(self.p90 / self.median) / 1.2816
        drawn = random_.lognormvariate(math.log(self.median), sigma)
        return int(min(max(drawn, self.low), self.high))


@dataclass(frozen=True, slots=True)
class Between:
    """Any from `low` to `high`, both included."""

    low: int
    high: int

    def draw(self, random_: random.Random) -> int:
        return random_.randint(self.low, self.high)


@dataclass(frozen=True, slots=True)
class Shape:
    """Requests with more than `total` tokens, prompt and output, are left out and drawn anew."""

    prompt: Draw
    output: Draw
    total: int | None = None

    def __post_init__(self) -> None:
        if self.total is not None and self.prompt.low + self.output.low > self.total:
            raise ValueError(f"the shortest request has more than {self.total} tokens")

    def draw(self, random_: random.Random) -> Arrival:
        while True:
            prompt, output = self.prompt.draw(random_), self.output.draw(random_)
            if self.total is None or prompt + output <= self.total:
                return Arrival(0.0, prompt, output)


@dataclass(frozen=True, slots=True)
class Rows:
    """Any row of a trace, whenever it arrived there."""

    trace: Sequence[Arrival]

    def draw(self, random_: random.Random) -> Arrival:
        return replace(random_.choice(self.trace), at=0.0)


CHATS = Shape(Lengths(170, 500, 8, 1500), Lengths(60, 150, 4, 400))
SUMMARIES = Shape(Lengths(900, 1600, 64, 1800), Lengths(40, 90, 4, 200))

# Where a total is given the figures before it are of what is drawn before the longest are left out, found so
# that what remains has the published ones (in the comment: median / P90 / standard deviation).
LENGTHS: dict[str, Shape] = {
    # prompt 1730 / 5696 / 2088, output 415 / 834 (Sarathi-Serve, OSDI 2024). Its 101 for the output's
    # standard deviation goes with no distribution at all: with half of them at most 415 and a tenth at least
    # 834 it is never below 121, min over m of sqrt(0.5 (m - 415)^2 + 0.1 (834 - m)^2). Ours is about 280.
    "openchat_sharegpt4": Shape(Lengths(3630, 33_644, 4, 8191), Lengths(419, 837, 4, 8191), 8192),
    # prompt 7059 / 12985 / 3638, output 208 / 371 / 265 (the same). Ours for the output is about 110: the
    # published one has a longer tail.
    "arxiv_summarization": Shape(Lengths(7901, 18_141, 4, 16_383), Lengths(209, 370, 4, 16_383), 16_384),
    # prompt 1020 / 2735, output 129 / 424, and the longest of each (Azure's public traces, as the next)
    "azure_conversation": Shape(Lengths(1020, 2735, 2, 14_050), Lengths(129, 424, 7, 1000)),
    # prompt 1469 / 5194, output 13 / 55
    "azure_code": Shape(Lengths(1469, 5194, 3, 7437), Lengths(13, 55, 6, 1899)),
    # two loads of an article on split-and-fuse: prompts of 50 to 500 tokens, 100 out, 32 at once; and prompts
    # near 100, about 8 at once, whose outputs it does not tell
    "split_fuse_a": Shape(Between(50, 500), Between(100, 100)),
    "split_fuse_b": Shape(Between(80, 120), Between(100, 100)),
    "chats": CHATS,
    "summaries": SUMMARIES,
}
