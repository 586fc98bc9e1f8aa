"""What arrives when: trace files, lengths, arrival processes and prompts, all fixed by a seed."""

from .arrival import Arrival, prompt, tokens
from .file import BadTrace, read, timed
from .lengths import LENGTHS, Between, Lengths, Rows, Shape, Source
from .process import Closed, Times, arrivals, gamma, poisson, replayed

__all__ = [
    "LENGTHS",
    "Arrival",
    "BadTrace",
    "Between",
    "Closed",
    "Lengths",
    "Rows",
    "Shape",
    "Source",
    "Times",
    "arrivals",
    "gamma",
    "poisson",
    "prompt",
    "read",
    "replayed",
    "timed",
    "tokens",
]
