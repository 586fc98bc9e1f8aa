"""Where a value is on an axis, and what is written beside it."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from .model import Axis
from .words import number, quantity, scaled

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Scale:
    """From `low` to `high`, drawn from `start` to `end`."""

    axis: Axis
    low: float
    high: float
    start: float
    end: float

    @classmethod
    def over(
        cls, axis: Axis, values: Iterable[float], start: float, end: float, *, zero: bool, room: float = 0.0
    ) -> "Scale":
        """Wide enough for all. A linear one begins at 0 if `zero`; `room` is a share, at its ends."""
        found = [value for value in values if math.isfinite(value)]
        if axis.scale == "tail":
            deepest = max((share for share in found if share < 1), default=0.9)
            nines = math.ceil(-math.log10(1 - deepest) + 0.15)
            return cls(axis, 0.0, 1 - 10.0 ** -min(max(nines, 1), 9), start, end)
        if axis.scale == "log":
            found = [value for value in found if value > 0] or [1.0]
            high = max(found)
            low = max(min(found), high * 1e-12)
            more = (high / low) ** 0.03 if high > low else 2.0
            return cls(axis, low / more, high * more, start, end)
        low, high = min(found, default=0.0), max(found, default=1.0)
        if zero and low >= 0:
            return cls(axis, 0.0, high * (1 + room) or 1.0, start, end)
        more = (high - low) * max(room, 0.05) or abs(high) * 0.1 or 1.0
        return cls(axis, low - more, high + more, start, end)

    def place(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        way = (self._bent(value) - self._bent(self.low)) / (self._bent(self.high) - self._bent(self.low))
        return self.start + way * (self.end - self.start)

    def _bent(self, value: float) -> float:
        if self.axis.scale == "log":
            return math.log10(value)
        return -math.log10(1 - value) if self.axis.scale == "tail" else value

    @property
    def label(self) -> str:
        if self.axis.scale == "tail" or self._decades():
            return self.axis.label
        unit = scaled(self.high, self.axis.unit)[1]
        return f"{self.axis.label}, {unit}" if unit else self.axis.label

    def ticks(self) -> list[tuple[float, str]]:
        """Values and their texts, some five to eight."""
        if self.axis.scale == "tail":
            depth = round(-math.log10(1 - self.high))
            shares = [0.0, 0.5, *(1 - 10.0**-nines for nines in range(1, depth + 1))]
            return [(share, f"{share * 100:.{max(index - 3, 0)}f} %") for index, share in enumerate(shares)]
        if decades := self._decades():
            return [(value, quantity(value, self.axis.unit)) for value in decades]
        by, _ = scaled(self.high, self.axis.unit)
        return [(value, number(value / by)) for value in self._even()]

    def _decades(self) -> list[float]:
        """Of a logarithmic axis that spans some; else none, and even steps do."""
        if self.axis.scale != "log" or self.high / self.low < 5:
            return []
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        steps: tuple[float, ...] = (1, 2, 5) if self.high / self.low < 400 else (1,)
        thin = decades[:: -(-len(decades) // 8)]
        values = [step * 10.0**decade for decade in thin for step in steps]
        return [value for value in values if self.low <= value <= self.high]

    def _even(self) -> list[float]:
        by, _ = scaled(self.high, self.axis.unit)
        low, high = self.low / by, self.high / by
        power = 10.0 ** math.floor(math.log10((high - low) / 5))
        step = next(each * power for each in _STEPS if (high - low) / (each * power) <= 6.5)
        first = math.ceil(low / step - 1e-9)
        return [index * step * by for index in range(first, math.floor(high / step + 1e-9) + 1)]
