"""How long a step takes: seconds ~ a + b * rows + c * pairs + d * context, learned from the steps themselves.

Rows are rounded up to the tile; `pairs` is the attention of chunks, `context` that of decodes: the one is
arithmetic, the other the reading of memory. Weighted least squares whose weights fade with age, with a prior
that fades never; sums of products are all that is kept, so the model is bounded and the same steps give the
same coefficients. A budget is made from what a step seldom exceeds: a quantile of what steps took beside it.
"""

from itertools import chain

from pillion.steptime import Work

from .correction import FAST, HIGH, Quantile

FADE = 0.98  # weight of a step after one more step
OUTLIER = (
    3.0  # a step counts as at most this many times its prediction: one hiccup does not shrink the budget
)
ROWS = 1e-2  # scales, so that the terms are of like size
PAIRS = 1e-5
CONTEXT = 1e-4
PRIOR = (0.010, 0.05, 0.01, 0.001)  # before the first step: 10 ms + 0.5 ms a row + 0.1 us a pair or position
STIFFNESS = 1e-3  # weight of the prior against one step
TERMS = range(len(PRIOR))


LEARNED = 3  # steps after which it is believed


class CostModel:
    """Predicts a step's seconds where no model was measured."""

    def __init__(self, tile: int) -> None:
        self._tile = tile
        self._products = [[STIFFNESS if i == j else 0.0 for j in TERMS] for i in TERMS]
        self._targets = [STIFFNESS * prior for prior in PRIOR]
        self._high = Quantile(HIGH, FAST)
        self.coefficients: tuple[float, ...] = PRIOR
        self.steps = 0

    @property
    def known(self) -> bool:
        """Whether it can be believed."""
        return self.steps >= LEARNED

    @property
    def factors(self) -> tuple[float, float]:
        """Of what is likely: that is in the coefficients; of what is seldom exceeded."""
        return 1.0, max(1.0, self._high.value)

    @property
    def learned(self) -> tuple[float, ...]:
        """What `go_on` takes up again."""
        sums = *self._targets, *chain.from_iterable(self._products)
        return float(self.steps), self._high.value, *self.coefficients, *sums

    def go_on(self, learned: tuple[float, ...]) -> None:
        """Raises ValueError for what another kind of model has learned."""
        if len(learned) != len(self.learned):
            raise ValueError(f"{len(learned)} numbers, not {len(self.learned)}")
        steps, self._high.value, *rest = learned
        width = len(TERMS)
        self.steps, self.coefficients, self._targets = (
            int(steps),
            tuple(rest[:width]),
            rest[width : 2 * width],
        )
        self._products = [rest[at : at + width] for at in range(2 * width, len(rest), width)]

    def predict(self, work: Work) -> float:
        (base, row, pair, position), (one, rows, pairs, context) = self.coefficients, self._sizes(work)
        return base * one + row * rows + pair * pairs + position * context

    def bound(self, work: Work) -> float:
        """What one step in twenty exceeds."""
        return self.predict(work) * max(1.0, self._high.value)

    def learn(self, work: Work, seconds: float, gap: float = 0.0) -> None:
        """Takes in one measured step, and the executor's wait before it, which streams feel too."""
        if self.known:
            predicted = self.predict(work)
            if predicted > 0:
                self._high.see((seconds + gap) / predicted)
            seconds = min(seconds, OUTLIER * predicted)
        self.steps += 1
        x = self._sizes(work)
        for i in TERMS:
            line = self._products[i]
            for j in TERMS:
                line[j] = FADE * line[j] + x[i] * x[j]
            line[i] += (1 - FADE) * STIFFNESS
            self._targets[i] = FADE * self._targets[i] + x[i] * seconds + (1 - FADE) * STIFFNESS * PRIOR[i]
        self.coefficients = _least_squares(self._products, self._targets)

    def _sizes(self, work: Work) -> tuple[float, float, float, float]:
        padded = -(-work.rows // self._tile) * self._tile
        return 1.0, ROWS * padded, PAIRS * work.pairs, CONTEXT * work.context


def _least_squares(products: list[list[float]], targets: list[float]) -> tuple[float, ...]:
    """Solves the system with no coefficient below zero: the most negative is left out, and again."""
    kept = list(TERMS)
    while True:
        solution = _solve([[products[i][j] for j in kept] for i in kept], [targets[i] for i in kept])
        lowest = min(range(len(kept)), key=solution.__getitem__)
        if solution[lowest] >= 0.0 or len(kept) == 1:
            break
        del kept[lowest]
    solved = dict(zip(kept, solution, strict=True))
    return tuple([max(solved.get(i, 0.0), 0.0) for i in TERMS])


def _solve(matrix: list[list[float]], vector: list[float]) -> list[float]:
    """Gauss without pivoting: the matrix is symmetric and, by the prior, positive definite."""
    size = len(vector)
    for i in range(size):
        for k in range(i + 1, size):
            factor = matrix[k][i] / matrix[i][i]
            for j in range(i, size):
                matrix[k][j] -= factor * matrix[i][j]
            vector[k] -= factor * vector[i]
    for i in reversed(range(size)):
        for j in range(i + 1, size):
            vector[i] -= matrix[i][j] * vector[j]
        vector[i] /= matrix[i][i]
    return vector
