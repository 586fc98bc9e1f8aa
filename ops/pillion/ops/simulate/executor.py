"""An executor that computes nothing: it honours plans exactly, and says how long they would have taken."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from pillion.scheduler.messages import Plan, RowResult
from pillion.scheduler.repeat import MOST
from pillion.scheduler.work import of_rows, work_of
from pillion.steptime import Work

TOKEN = 7
"""What every step brings. Blocks of output are never mistaken for another's: their prompts differ."""

_TOKENS = [(TOKEN,) * count for count in range(MOST + 1)]

Seconds = Callable[[Work], float]


@dataclass(slots=True)
class Slot:
    incarnation: int
    left: int  # tokens until its sequence ends


@dataclass(frozen=True, slots=True)
class Ran:
    """What a plan came to."""

    rows: tuple[RowResult, ...]
    works: tuple[Work, ...]  # of each forward pass; none where no row was left
    seconds: float


class Drawn:
    """A step's time by the cost model, times how far measured steps lay from it: drawn from the quantiles."""

    def __init__(self, seconds: Seconds, ratios: tuple[float, ...], random_: random.Random) -> None:
        self._seconds = seconds
        self._ratios = ratios
        self._random = random_

    def __call__(self, work: Work) -> float:
        ratios = self._ratios
        if not ratios:
            return self._seconds(work)
        at = self._random.random() * (len(ratios) - 1)
        left = int(at)
        right = min(left + 1, len(ratios) - 1)
        return self._seconds(work) * (ratios[left] + (at - left) * (ratios[right] - ratios[left]))


class Executor:
    """Sequences end by their length alone. Raises KeyError for a plan that names a slot that nobody holds."""

    def __init__(self, seconds: Seconds) -> None:
        self._seconds = seconds
        self._slots: dict[int, Slot] = {}

    def run(self, plan: Plan) -> Ran:
        """Releases, then takes, then rows, as the contract has it."""
        slots = self._slots
        for number in plan.release:
            del slots[number]
        for take in plan.take:
            left = take.max_tokens - (len(take.tokens) - take.prompt_length)
            slots[take.slot] = Slot(take.incarnation, left)
        rows, ended = [], []
        for number, sample in zip(plan.slots, plan.samples, strict=True):
            slot = slots[number]
            if not slot.left:
                ended.append(number)
            elif sample:
                count = min(sample, slot.left)
                slot.left -= count
                finish = None if slot.left else "length"
                rows.append(RowResult(number, slot.incarnation, _TOKENS[count], finish))
        works = self._works(plan, ended)
        return Ran(tuple(rows), works, sum(map(self._seconds, works)))

    @staticmethod
    def _works(plan: Plan, ended: list[int]) -> tuple[Work, ...]:
        """Rows whose sequence has ended are not computed, nor is a step that has no others."""
        if plan.steps == 1 and not ended:
            return (work_of(plan),)
        works: list[Work] = []
        for step in range(plan.steps):
            # Of a plan of several steps all rows are decodes, each with its own number of them.
            rows = [
                (row, start + step, count, min(sample, 1))
                for row, (number, start, count, sample) in enumerate(
                    zip(plan.slots, plan.starts, plan.counts, plan.samples, strict=True)
                )
                if number not in ended and (step == 0 or step < sample)
            ]
            if rows:
                decodes = sum(row < plan.decodes for row, *_ in rows)
                _, starts, counts, samples = zip(*rows, strict=True)
                works.append(of_rows(decodes, starts, counts, samples))
        return tuple(works)
