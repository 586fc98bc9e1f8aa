"""A token a row of logits: temperature, top-k, top-p, min-p, one after the other, then a draw of the rest.

Each row is seen alone and in float64 in one fixed order, so the same row gives the same bits whatever else
the batch holds. For backends without a kernel of their own; one that has it is compared with this.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Row = NDArray[np.float32]
Ids = NDArray[np.intp]
Weights = NDArray[np.float64]


def draws(logits: Tensor, wishes: NDArray[np.void]) -> NDArray[np.int64]:
    """`Backend.draw` on any device."""
    best = _argmax(logits)
    tokens: NDArray[np.int64] = best.numpy(force=True).copy()
    peaks = logits[torch.arange(len(tokens), device=logits.device), best].numpy(force=True)
    sound = np.isfinite(peaks)
    tokens[~sound] = -1
    if rows := np.flatnonzero(sound & (wishes["temperature"] > 0)).tolist():
        host = logits.numpy(force=True)
        for row in rows:
            temperature, top_p, min_p, uniform, top_k = wishes[row].item()
            tokens[row] = draw(*candidates(host[row], temperature, top_k, top_p, min_p), uniform)
    return tokens


def _argmax(logits: Tensor) -> Tensor:
    """Per row the lowest id of the largest logit, int64 [R]; a NaN counts as the largest."""
    if logits.device.type == "cpu":
        return torch.from_numpy(logits.numpy().argmax(axis=1))  # a third of the time of torch's own
    return logits.argmax(dim=1)


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
    weights = np.exp(logits / temperature)
    if top_p < 1.0:
        ids, weights = _narrow(ids, weights, _nucleus(logits, weights, top_p))
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


def _nucleus(logits: Weights, weights: Weights, top_p: float) -> Ids:
    """Indices of the fewest likeliest tokens that hold a mass of at least `top_p` (Holtzman et al. 2020).

    They are ordered by logit, which tells tokens apart that a high temperature makes equal.
    """
    total = weights.sum()
    # All tokens below this weight together hold less than 1 - top_p, so none of them is in the set; only the
    # rest needs sorting. Half of it, since the comparison must not hang on the last bit.
    heads = np.flatnonzero(weights >= 0.5 * (1.0 - top_p) * total / weights.size)
    heads = heads[np.argsort(-logits[heads], kind="stable")]
    cumulative = np.cumsum(weights[heads])
    count = int(np.searchsorted(cumulative, top_p * total, side="left")) + 1
    nucleus: Ids = np.sort(heads[:count])
    return nucleus


def _narrow(ids: Ids | None, weights: Weights, kept: Ids) -> tuple[Ids, Weights]:
    return (kept if ids is None else ids[kept]), weights[kept]
