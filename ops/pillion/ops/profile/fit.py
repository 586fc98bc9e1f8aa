"""Fits the cost model: the least relative errors, with no coefficient below zero.

Each step counts with the median of its repeats, whatever else ran on the machine meanwhile, and with the
weight 1 / t^2: what is wanted is the relative error. Non-negative increments between the points of a curve
make it monotone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pillion.steptime import Curve, Error, StepTime, Work

Matrix = NDArray[np.float64]

_PROBABILITIES = np.linspace(0, 1, 101)
_NEAR = 0.03  # a relative residual up to which squares are minimized (Huber, 1964)
_ROUNDS = 12
_SAMPLED = (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024)  # rows through the head, the curve's points


@dataclass(frozen=True, slots=True)
class Measured:
    """One step and how long it took, each time."""

    work: Work
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))


def fit(steps: Sequence[Measured], points: Sequence[int], tile: int) -> StepTime:
    """The model alone, without error and provenance. `points`: row counts at which its curve may bend."""
    most = max(step.work.rows for step in steps)
    heads = max(step.work.sampled for step in steps)
    rows = [point for point in points if 1 < point < most] + [most]
    sampled = [point for point in _SAMPLED if point < heads] + ([heads] if heads else [])
    times = np.array([step.median for step in steps])
    matrix = np.array([_terms(step.work, rows, sampled, tile) for step in steps])
    found = robust(matrix / times[:, None])
    base, tiles, pair, context, decode, chunk = (float(value) for value in found[:6])
    curve, head = found[6 : 6 + len(rows)], found[6 + len(rows) :]
    return StepTime(
        base=base,
        rows=Curve(tuple(rows), tuple(map(float, np.cumsum(curve)))),
        tile=tile,
        tile_seconds=tiles,
        sampled=Curve(tuple(sampled), tuple(map(float, np.cumsum(head)))),
        pair=pair,
        context=context,
        decode=decode,
        chunk=chunk,
    )


def error(model: StepTime, held: Sequence[Measured], steps: Sequence[Measured]) -> Error:
    """Of the steps held out; the machine's own spread is of all `steps`."""
    relative = [abs(model.seconds(step.work) - step.median) / step.median for step in held]
    spreads = [
        (np.quantile(step.seconds, 0.9) - np.quantile(step.seconds, 0.1)) / step.median for step in steps
    ]
    return Error(
        steps=len(held),
        median=float(np.median(relative)),
        p95=float(np.quantile(relative, 0.95)),
        spread=float(np.median(spreads)),
    )


def ratios(model: StepTime, steps: Sequence[Measured]) -> tuple[float, ...]:
    """Quantiles 0 %, 1 %, ..., 100 % of measured / predicted, over each single repeat."""
    every = [seconds / model.seconds(step.work) for step in steps for seconds in step.seconds]
    return tuple(map(float, np.quantile(every, _PROBABILITIES)))


def nonnegative(matrix: Matrix, vector: Matrix) -> Matrix:
    """x >= 0 of the least |matrix x - vector|, by active sets (Lawson and Hanson, 1974, chapter 23)."""
    columns = matrix.shape[1]
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    matrix = matrix / scale
    x = np.zeros(columns)
    free = np.zeros(columns, dtype=bool)
    for _ in range(10 * columns):
        gradient = matrix.T @ (vector - matrix @ x)
        gradient[free] = -np.inf
        best = int(np.argmax(gradient))
        if gradient[best] <= 1e-10:
            break
        free[best] = True
        while True:
            wanted = np.zeros(columns)
            wanted[free] = np.linalg.lstsq(matrix[:, free], vector, rcond=None)[0]
            below = free & (wanted <= 0)
            if not below.any():
                break
            # As far as the first that would go below zero, which is held there.
            part = x[below] / np.maximum(x[below] - wanted[below], 1e-300)
            x = x + part.min() * (wanted - x)
            held = below & (x <= 1e-12)
            held[np.flatnonzero(below)[int(np.argmin(part))]] = True
            free &= ~held
            x[~free] = 0.0
        x = wanted
    found: Matrix = x / scale
    return found


def robust(relative: Matrix) -> Matrix:
    """Coefficients that make each row's sum 1, nearly. A row that is far off counts as its distance, not as
    the square of it: least squares again and again, each with the weights that the last one's residuals say.
    """
    ones = np.ones(len(relative))
    weights = ones
    for _ in range(_ROUNDS):
        found = nonnegative(relative * weights[:, None], weights)
        weights = np.minimum(1.0, _NEAR / np.maximum(np.abs(relative @ found - ones), 1e-12)) ** 0.5
    return found


def _terms(work: Work, rows: Sequence[int], sampled: Sequence[int], tile: int) -> list[float]:
    tiles = float(-(-work.rows // tile))
    plain = [1.0, tiles, work.pairs, float(work.context), float(work.decodes), float(work.chunks)]
    return plain + _increments(work.rows, rows) + _increments(work.sampled, sampled)


def _increments(size: int, points: Sequence[int]) -> list[float]:
    """How much of each piece of a curve lies below `size`: as `Curve` goes on behind its last point."""
    made = []
    for left, right in zip((0, *points), points, strict=False):
        share = (size - left) / (right - left)
        made.append(max(share if right == points[-1] else min(share, 1.0), 0.0))
    return made
