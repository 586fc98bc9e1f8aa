"""Numbers as people read them: three digits, and the unit that makes them small."""

import math

from pillion.ops.measure import mean_of

from .model import Cell, Figure, Unit

NONE = "–"
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def number(value: float) -> str:
    """Three digits, or all before the point."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def scaled(most: float, unit: Unit) -> tuple[float, Unit]:
    """What to divide by, and the unit then, so that numbers up to `most` are easy to read."""
    if unit == "share":
        return 0.01, "%"
    if unit == "s" and most:
        return next((each for each in _SECONDS if abs(most) >= each[0]), _SECONDS[-1])
    return 1.0, unit


def quantity(value: Cell, unit: Unit = "") -> str:
    """With its unit. Text stays as it is."""
    if value is None:
        return NONE
    if isinstance(value, str):
        return value
    by, short = scaled(value, unit)
    return f"{number(value / by)} {short}".rstrip()


def between(mean: float, half: float | None, unit: Unit) -> str:
    """A mean and half its interval, both in the mean's unit."""
    by, short = scaled(mean, unit)
    spread = "" if half is None else f" ± {number(float(f'{half / by:.2g}'))}"
    return f"{number(mean / by)}{spread} {short}".rstrip()


def figure(one: Figure) -> str:
    return between(*mean_of(one.values), one.unit) if one.values else NONE
