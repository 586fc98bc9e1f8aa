"""What became of requests: outcomes one by one, and of all of them a summary of bounded size.

`DEFINITIONS` says what each figure means; every report carries it.
"""

from .confidence import difference, mean_of
from .histogram import Histogram, percentile
from .outcome import FAILED, FINISHED, UNFINISHED, Outcome, Slo, outcome
from .tally import DEFINITIONS, Tally
from .windows import Windows

__all__ = [
    "DEFINITIONS",
    "FAILED",
    "FINISHED",
    "UNFINISHED",
    "Histogram",
    "Outcome",
    "Slo",
    "Tally",
    "Windows",
    "difference",
    "mean_of",
    "outcome",
    "percentile",
]
