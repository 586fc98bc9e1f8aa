"""One request of a trace, and its token ids."""

import random
from dataclasses import dataclass
from functools import lru_cache

IDS = range(1000, 40_000)
"""Ordinary tokens of every large vocabulary."""

_TAPE = 1 << 17
_STRIDE = 40_503  # odd: as many different windows as the tape has places


@dataclass(frozen=True, slots=True)
class Arrival:
    """Requests of one `group` have their first `prefix` prompt tokens in common."""

    at: float  # seconds from the start
    prompt: int  # tokens
    output: int  # tokens, to its full length
    group: int | None = None
    prefix: int = 0
    priority: int = 0  # lower runs earlier
    tenant: str = ""


def tokens(seed: int, index: int, arrival: Arrival) -> tuple[int, ...]:
    """The prompt of request `index`, the same for the same seed. Only those of its group begin like it.

    Prompts are windows of one tape of random ids, from the second time round behind an id that counts the
    rounds: however many there are, their ids are the tape's.
    """
    shared = min(arrival.prefix, arrival.prompt) if arrival.group is not None else 0
    own = _window(seed, index, arrival.prompt - shared)
    return _window(-seed - 1, arrival.group or 0, shared) + own if shared else own


def prompt(random_: random.Random, length: int) -> list[int]:
    """So many random ids."""
    return random_.choices(IDS, k=length)


def _window(seed: int, index: int, length: int) -> tuple[int, ...]:
    lap, place = divmod(index, _TAPE)
    start = place * _STRIDE % _TAPE
    found: tuple[int, ...] = (IDS[lap % len(IDS)],) if lap and length else ()
    while len(found) < length:
        found += _tape(seed)[start : start + length - len(found)]
        start = 0
    return found


@lru_cache(maxsize=4)
def _tape(seed: int) -> tuple[int, ...]:
    return tuple(prompt(random.Random(seed), _TAPE))
