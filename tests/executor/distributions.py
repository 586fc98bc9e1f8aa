"""What is drawn, written down independently, and whether draws are of it."""

import math
from collections import Counter

import numpy as np

from pillion.contracts.entries import Sampling

END = (0, 2)


def oracle(
    row: np.ndarray, sampling: Sampling, prompt: list[int], output: list[int], end: tuple[int, ...] = END
) -> np.ndarray:
    """The distribution, written the slow way: loops, full sorts, float64."""
    x = [float(value) for value in row]
    for token in set(prompt) | set(output):
        r = sampling.repetition_penalty
        x[token] = x[token] / r if x[token] > 0 else x[token] * r
    for token, count in Counter(output).items():
        x[token] -= sampling.frequency_penalty * count + sampling.presence_penalty
    for token, bias in sampling.logit_bias.items():
        x[token] += bias
    banned = [
        word[-1] for word in sampling.bad_words if output[len(output) + 1 - len(word) :] == [*word[:-1]]
    ]
    for token in range(len(x)):
        if token in banned or (sampling.allowed_token_ids and token not in sampling.allowed_token_ids):
            x[token] = -math.inf
    if len(output) < sampling.min_tokens:
        for token in (*end, *sampling.stop_token_ids):
            x[token] = -math.inf
    peak = max(x)
    p = [math.exp((value - peak) / sampling.temperature) for value in x]
    order = sorted(range(len(p)), key=lambda token: (-p[token], token))
    if sampling.top_k:
        order = order[: sampling.top_k]
    total = sum(p[token] for token in order)
    kept, mass = [], 0.0
    for token in order:
        if sampling.top_p < 1 and mass >= sampling.top_p * total:
            break
        kept.append(token)
        mass += p[token]
    kept = [token for token in kept if p[token] >= sampling.min_p * p[order[0]]]
    result = np.zeros(len(x))
    result[kept] = [p[token] for token in kept]
    return result / result.sum()


def agree(counts: np.ndarray, expected: np.ndarray) -> None:
    """Asserts that the counts are draws of the distribution."""
    draws = int(counts.sum())
    assert counts[expected == 0].sum() == 0  # nothing that is filtered is ever drawn
    # Pearson's chi-square over cells of at least five expected draws, the rest pooled.
    cells = expected * draws >= 5
    seen = np.append(counts[cells], counts[~cells].sum())
    wanted = np.append(expected[cells], expected[~cells].sum()) * draws
    seen, wanted = seen[wanted > 0], wanted[wanted > 0]
    degrees = max(wanted.size - 1, 1)
    chi = float(((seen - wanted) ** 2 / wanted).sum())
    # Wilson-Hilferty: the cube root of chi/degrees is near normal. Seeds are fixed, so this never flickers.
    z = ((chi / degrees) ** (1 / 3) - (1 - 2 / (9 * degrees))) / math.sqrt(2 / (9 * degrees))
    assert z < 3.5
    assert wanted.size > 1 or expected.max() == 1.0
