"""How a run went on: sums by time, in windows that widen as it gets longer."""

from collections.abc import Iterable
from typing import Any


class Windows:
    """So many sums each; at most `most` windows, whatever the length: neighbours are added then."""

    def __init__(self, names: Iterable[str], width: float = 1.0, most: int = 120) -> None:
        self.names = tuple(names)
        self.width = width  # seconds
        self._most = most
        self._rows: list[list[float]] = []

    def add(self, at: float, **amounts: float) -> None:
        """So much more of each name, `at` seconds from the start, which is not negative."""
        while at >= self.width * self._most:
            self._widen()
        place = int(at / self.width)
        while len(self._rows) <= place:
            self._rows.append([0] * len(self.names))
        for name, amount in amounts.items():
            self._rows[place][self.names.index(name)] += amount

    def spread(self, begin: float, end: float, **amounts: float) -> None:
        """As `add`, of what went on evenly for that time."""
        if end <= begin:
            self.add(begin, **amounts)
            return
        while end >= self.width * self._most:
            self._widen()
        width = self.width
        for place in range(int(begin / width), int(end / width) + 1):
            share = (min(end, (place + 1) * width) - max(begin, place * width)) / (end - begin)
            self.add(place * width, **{name: share * amount for name, amount in amounts.items()})

    def _widen(self) -> None:
        odd: list[list[float]] = [*self._rows, [0] * len(self.names)] if len(self._rows) % 2 else self._rows
        self._rows = [
            [a + b for a, b in zip(*pair, strict=True)] for pair in zip(odd[::2], odd[1::2], strict=True)
        ]
        self.width *= 2

    def told(self) -> list[dict[str, Any]]:
        """Each window: where it begins, in seconds, and its sums."""
        return [
            {"at": place * self.width, **dict(zip(self.names, row, strict=True))}
            for place, row in enumerate(self._rows)
        ]
