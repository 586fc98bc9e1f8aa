"""A measured run beside the simulated one: each figure, and by how much the simulation is off. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

FIGURES = tuple((name, quantile) for name in ("tbt_s", "ttft_s", "e2e_s") for quantile in ("median", "p99"))
"""Where a tally's summary has what is compared."""

Summary = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure at one load. Seconds, of each repeat."""

    name: str
    measured: tuple[float, ...]
    simulated: tuple[float, ...]

    @property
    def off(self) -> float:
        """Of the means: simulated over measured, less 1."""
        return fmean(self.simulated) / fmean(self.measured) - 1.0

    @property
    def inside(self) -> bool:
        """Whether the simulated mean is within what the measured repeats span."""
        return min(self.measured) <= fmean(self.simulated) <= max(self.measured)


def compared(measured: Sequence[Summary], simulated: Sequence[Summary]) -> list[Compared]:
    """Repeats side by side. Raises ValueError where a run has no such figure: nothing finished."""
    found = []
    for name, quantile in FIGURES:
        title = f"{name.removesuffix('_s').upper()} {'P99' if quantile == 'p99' else quantile}"
        both = [
            tuple(told[name][quantile] for told in runs if told[name] is not None)
            for runs in (measured, simulated)
        ]
        if not all(both):
            raise ValueError(f"no run has a {title}")
        found.append(Compared(title, *both))
    return found
