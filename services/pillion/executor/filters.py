"""Which tokens of one position may be drawn, and how likely each is: temperature, top-k, top-p, min-p.

Each function sees one row alone and works in float64 in one fixed order, so the same row gives the same bits
whatever else the batch holds.
"""

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.float32]
Ids = NDArray[np.intp]
Weights = NDArray[np.float64]


def likeliest(row: Row, k: int) -> Ids:
    """The ids of the `k` largest logits [V], in order of id; of equal logits the lower ids."""
    if k >= row.size:
        return np.arange(row.size)
    least = np.partition(row, row.size - k)[row.size - k]
    ids = np.flatnonzero(row >= least)
    surplus = ids.size - k
    if surplus == 0:
        return ids
    return np.delete(ids, np.flatnonzero(row[ids] == least)[-surplus:])


def candidates(
    row: Row, temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[Ids | None, Weights]:
    """Ids in ascending order (None: all of them) and their unnormalised probabilities.

    `row` is float32 [V]; its largest logit is finite. The temperature is applied first, then top-k, then
    top-p on what top-k left, then min-p relative to the likeliest token.
    """
    ids: Ids | None = likeliest(row, top_k) if 0 < top_k < row.size else None
    logits = (row if ids is None else row[ids]).astype(np.float64)
    logits -= logits.max()
    logits /= temperature
    weights = np.exp(logits)
    if top_p < 1.0:
        ids, weights = _narrow(ids, weights, _nucleus(weights, top_p))
    if min_p > 0.0:
        ids, weights = _narrow(ids, weights, np.flatnonzero(weights >= min_p * weights.max()))
    return ids, weights


def draw(ids: Ids | None, weights: Weights, uniform: float) -> int:
    """Inverts the cumulative distribution, in order of id, at `uniform` in [0, 1)."""
    cumulative = np.cumsum(weights)
    target = uniform * cumulative[-1]
    index = int(np.searchsorted(cumulative, target, side="right"))
    if index == cumulative.size:  # uniform * total rounded up to the total
        index = int(np.searchsorted(cumulative, target, side="left"))
    return index if ids is None else int(ids[index])


def _nucleus(weights: Weights, top_p: float) -> Ids:
    """Indices of the fewest likeliest tokens that hold a mass of at least `top_p` (Holtzman et al. 2020)."""
    total = weights.sum()
    # All tokens below this weight together hold less than 1 - top_p, so none of them is in the set; only the
    # rest needs sorting. Half of it, since the comparison must not hang on the last bit.
    heads = np.flatnonzero(weights >= 0.5 * (1.0 - top_p) * total / weights.size)
    ordered = np.sort(weights[heads])[::-1]
    cumulative = np.cumsum(ordered)
    count = min(int(np.searchsorted(cumulative, top_p * total, side="left")) + 1, ordered.size)
    least = ordered[count - 1]
    kept = weights[heads] > least
    ties = np.flatnonzero(weights[heads] == least)
    kept[ties[: count - int(np.count_nonzero(kept))]] = True
    nucleus: Ids = heads[kept]
    return nucleus


def _narrow(ids: Ids | None, weights: Weights, kept: Ids) -> tuple[Ids, Weights]:
    return (kept if ids is None else ids[kept]), weights[kept]
