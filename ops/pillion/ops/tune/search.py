"""Which settings are tried, and which are best: pure, whoever does the trying."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

SEQUENCES = (8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class Setting:
    budget: int  # tokens a step, a multiple of the tile
    sequences: int  # that run at once


@dataclass(frozen=True, slots=True)
class Tried:
    """What a setting brought under one class of traffic that keeps it full. Seconds."""

    setting: Setting
    tbt: float  # P99 over all gaps
    ttft: float  # median
    rate: float  # tokens a second, prompt and output
    kept: bool  # the target


Try = Callable[[Setting], Tried]


def budgets(tile: int, most: int) -> tuple[int, ...]:
    """Multiples of the tile, each about a fifth above the one before; the least is one tile."""
    found = [tile]
    while found[-1] < most:
        found.append(min(max(found[-1] + tile, round(1.2 * found[-1] / tile) * tile), most // tile * tile))
        if found[-1] == found[-2]:
            return tuple(found[:-1])
    return tuple(found)


def explore(attempt: Try, sizes: Sequence[int], sequences: Sequence[int]) -> list[Tried]:
    """For each number of sequences the largest budget that keeps the target, with all that was tried.

    Gaps grow with the budget, so it is found by halving. More sequences than the least budget can carry are
    not tried once some number kept nothing.
    """
    tried: list[Tried] = []
    for number in sequences:
        low, high = -1, len(sizes)
        while high - low > 1:
            middle = (low + high) // 2
            one = attempt(Setting(sizes[middle], number))
            tried.append(one)
            low, high = (middle, high) if one.kept else (low, middle)
        if low < 0:
            break
    return tried


def best(tried: Sequence[Tried]) -> Tried | None:
    """The one that does most of those that keep the target; None where none does."""
    return max((one for one in tried if one.kept), key=lambda one: one.rate, default=None)


def common(found: Sequence[Tried]) -> Setting:
    """The smaller of each: what might serve all classes. It has to be tried."""
    return Setting(min(one.setting.budget for one in found), min(one.setting.sequences for one in found))
