"""A measured cost model, corrected by what steps take: while serving, more runs than while it was measured.

Two factors follow quantiles of the ratio measured / predicted: the middle tells when a step will end, the
high one what a step seldom exceeds, and that is what a budget is made from. Each step moves a factor by a
fixed share, up where the step took longer, down where it did not, so that one hiccup counts as one step and
no factor swings: where steps are as before, it moves within a few percent. Factors stay within bounds, which
are wide: a file of another model or machine costs its first hundreds of steps, and then keeps the target too.
"""

from math import exp

from pillion.steptime import StepTime, Work

LEAST, MOST = 1 / 16, 16.0
MIDDLE, HIGH = 0.5, 0.95
SLOW, FAST = (
    0.02,
    0.04,
)  # of the ratio's logarithm, a step; the high one has to be there before streams are late


class Quantile:
    """Follows the value that a share of what it sees does not exceed."""

    def __init__(self, share: float, rate: float) -> None:
        self.value = 1.0
        self._up = exp(rate * share)
        self._down = exp(-rate * (1 - share))

    def see(self, ratio: float) -> None:
        moved = self.value * (self._up if ratio > self.value else self._down)
        self.value = min(max(moved, LEAST), MOST)


class Corrected:
    """Predicts a step's seconds by a measured model. Has the interface of `cost.CostModel`."""

    known = True

    def __init__(self, model: StepTime) -> None:
        self.model = model
        self.hash = model.hash
        self._middle = Quantile(MIDDLE, SLOW)
        self._high = Quantile(HIGH, FAST)

    @property
    def factors(self) -> tuple[float, float]:
        """Of what is likely, and of what is seldom exceeded."""
        return self._middle.value, max(self._middle.value, self._high.value)

    @property
    def learned(self) -> tuple[float, ...]:
        """What `go_on` takes up again."""
        return self._middle.value, self._high.value

    def go_on(self, learned: tuple[float, ...]) -> None:
        """Raises ValueError for what another kind of model has learned."""
        self._middle.value, self._high.value = learned

    def predict(self, work: Work) -> float:
        return self.model.seconds(work) * self._middle.value

    def bound(self, work: Work) -> float:
        """What one step in twenty exceeds."""
        return self.model.seconds(work) * max(self._middle.value, self._high.value)

    def learn(self, work: Work, seconds: float, gap: float = 0.0) -> None:
        """Takes in one measured step, and the executor's wait before it, which streams feel too."""
        predicted = self.model.seconds(work)
        if predicted > 0:
            self._middle.see(seconds / predicted)
            self._high.see((seconds + gap) / predicted)
