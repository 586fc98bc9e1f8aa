"""How long a step takes: seconds ~ a + b * rows + c * attention, learned from the steps themselves.

Rows are rounded up to the tile. Attention work counts (query, key) pairs, of decodes and chunks alike.
Weighted least squares whose weights fade with age, with a prior that fades never; three sums of products are
all that is kept, so the model is bounded and the same steps give the same coefficients.
"""

from pillion.steptime import Work

FADE = 0.98  # weight of a step after one more step
OUTLIER = (
    3.0  # a step counts as at most this many times its prediction: one hiccup does not shrink the budget
)
ROWS = 1e-2  # scales, so that the three terms are of like size
PAIRS = 1e-5
PRIOR = (0.010, 0.05, 0.01)  # before the first step: 10 ms + 0.5 ms a row + 0.1 us a pair
STIFFNESS = (1e-3, 1e-3, 1e-3)  # weight of the prior against one step


LEARNED = 3  # steps after which it is believed


class CostModel:
    """Predicts a step's seconds where no model was measured."""

    factors = 1.0, 1.0  # what it learns is in its coefficients

    def __init__(self, tile: int) -> None:
        self._tile = tile
        self._products = [[STIFFNESS[i] if i == j else 0.0 for j in range(3)] for i in range(3)]
        self._targets = [STIFFNESS[i] * PRIOR[i] for i in range(3)]
        self.coefficients = PRIOR
        self.steps = 0

    @property
    def known(self) -> bool:
        """Whether it can be believed."""
        return self.steps >= LEARNED

    def predict(self, work: Work) -> float:
        base, rows, pairs = self.coefficients
        return base + rows * ROWS * self._padded(work.rows) + pairs * PAIRS * (work.context + work.pairs)

    def bound(self, work: Work) -> float:
        """What a step is expected to keep."""
        return self.predict(work)

    def learn(self, work: Work, seconds: float) -> None:
        """Takes in one measured step."""
        if self.known:
            seconds = min(seconds, OUTLIER * self.predict(work))
        self.steps += 1
        x = (1.0, ROWS * self._padded(work.rows), PAIRS * (work.context + work.pairs))
        for i in range(3):
            line = self._products[i]
            for j in range(3):
                line[j] = FADE * line[j] + x[i] * x[j]
            line[i] += (1 - FADE) * STIFFNESS[i]
            self._targets[i] = FADE * self._targets[i] + x[i] * seconds + (1 - FADE) * STIFFNESS[i] * PRIOR[i]
        self.coefficients = _least_squares(self._products, self._targets)

    def _padded(self, rows: int) -> int:
        return -(-rows // self._tile) * self._tile


def _least_squares(products: list[list[float]], targets: list[float]) -> tuple[float, float, float]:
    """Solves the 3 x 3 system with no coefficient below zero: the most negative is left out, and again."""
    kept = [0, 1, 2]
    while True:
        solution = _solve([[products[i][j] for j in kept] for i in kept], [targets[i] for i in kept])
        lowest = min(range(len(kept)), key=solution.__getitem__)
        if solution[lowest] >= 0.0 or len(kept) == 1:
            break
        del kept[lowest]
    result = [0.0, 0.0, 0.0]
    for i, value in zip(kept, solution, strict=True):
        result[i] = max(value, 0.0)
    return result[0], result[1], result[2]


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
