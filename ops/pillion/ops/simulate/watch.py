"""What steps carried, in total and as the run went on, in memory that does not grow with it."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from pillion.scheduler.messages import Plan, Snapshot

from .clock import Clock
from .executor import Ran

MOST = 240  # windows; neighbours are added when there are more
_NAMES = ("steps", "seconds", "decodes", "prefill", "budget", "waiting", "running", "in_use", "looks", "held")


class Watch:
    """Sums over windows that widen as the run gets longer, and counts of chunks by their size."""

    def __init__(self, tile: int) -> None:
        self.chunks: Counter[int] = Counter()  # by tokens, rounded up to the tile
        self.width = 1.0  # seconds of a window
        self.tile = tile
        self._windows: list[list[float]] = []
        self._sums = [0.0] * len(_NAMES)
        self._highest = Counter[str]()

    def ran(self, plan: Plan, done: Ran, start: float) -> None:
        decodes = sum(work.decodes for work in done.works)
        rows = sum(work.rows for work in done.works)
        steps = len(done.works)
        self._add(start, (steps, done.seconds, decodes, rows - decodes, plan.budget * steps))
        tile = self.tile
        for count in plan.counts[plan.decodes :]:
            self.chunks[-(-count // tile) * tile] += 1

    def look(
        self, clock: Clock, cores: Sequence[Callable[[float], Snapshot]], held: Callable[[], int]
    ) -> None:
        """Looks at every replica and at how many admission holds, now and at each window's begin."""
        for snapshot in cores:
            seen = snapshot(clock.now)
            in_use = seen.referenced_blocks / seen.blocks if seen.blocks else 0.0
            self._add(clock.now, (0, 0, 0, 0, 0, seen.waiting, seen.running, in_use, 1))
            for name in ("waiting", "running"):
                self._highest[name] = max(self._highest[name], getattr(seen, name))
        self._add(clock.now, (0, 0, 0, 0, 0, 0, 0, 0, 0, held() * len(cores)))
        self._highest["held"] = max(self._highest["held"], held())
        clock.at(clock.now + self.width, self.look, clock, cores, held)

    def _add(self, at: float, values: tuple[float, ...]) -> None:
        while at >= self.width * MOST:
            self._widen()
        place = int(at / self.width)
        while len(self._windows) <= place:
            self._windows.append([0.0] * len(_NAMES))
        window, sums = self._windows[place], self._sums
        for index, value in enumerate(values):
            window[index] += value
            sums[index] += value

    def _widen(self) -> None:
        if len(self._windows) % 2:
            self._windows.append([0.0] * len(_NAMES))
        pairs = zip(self._windows[::2], self._windows[1::2], strict=True)
        self._windows = [[a + b for a, b in zip(*pair, strict=True)] for pair in pairs]
        self.width *= 2

    def told(self) -> list[dict[str, float]]:
        """Each window: when it began, tokens a step by kind, what waited and ran at a replica, what admission
        held: means.
        """
        return [{"at": place * self.width, **_means(window)} for place, window in enumerate(self._windows)]

    def summary(self) -> dict[str, Any]:
        means, sums = _means(self._sums), dict(zip(_NAMES, self._sums, strict=True))
        return {
            "steps": int(sums["steps"]),
            "busy_s": sums["seconds"],
            "prefill_tokens": int(sums["prefill"]),
            "decode_tokens": int(sums["decodes"]),
            **{name: value for name, value in means.items() if name != "steps"},
            "most_waiting": self._highest["waiting"],
            "most_running": self._highest["running"],
            "most_held": self._highest["held"],
        }


def _means(window: Sequence[float]) -> dict[str, float]:
    sums = dict(zip(_NAMES, window, strict=True))
    steps, looks, budget = (sums[name] or 1.0 for name in ("steps", "looks", "budget"))
    return {
        "steps": sums["steps"],
        "step_s": sums["seconds"] / steps,
        "decodes_a_step": sums["decodes"] / steps,
        "prefill_a_step": sums["prefill"] / steps,
        "budget": sums["budget"] / steps,
        "budget_used": (sums["decodes"] + sums["prefill"]) / budget,
        "waiting": sums["waiting"] / looks,
        "running": sums["running"] / looks,
        "held": sums["held"] / looks,
        "kv_in_use": sums["in_use"] / looks,
    }
