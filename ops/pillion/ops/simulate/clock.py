"""Virtual time: what happens when."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any


class Clock:
    """Calls what is due, in order; of what is due at one time, in the order in which it was asked for."""

    def __init__(self) -> None:
        self.now = 0.0  # seconds from the start
        self._due: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = count()

    def at(self, time: float, call: Callable[..., None], *args: Any) -> None:
        """What is due in the past is due now."""
        heappush(self._due, (max(time, self.now), next(self._numbers), call, args))

    def run(self, goes_on: Callable[[], bool]) -> None:
        """Until nothing is due, or `goes_on` says no."""
        due = self._due
        while due and goes_on():
            self.now, _, call, args = heappop(due)
            call(*args)
