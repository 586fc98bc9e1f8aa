"""How many tokens the next step may compute, and how many of them may be decodes."""

from dataclasses import dataclass
from math import ceil, inf

from msgspec.structs import replace

from pillion.config import Scheduler
from pillion.contracts.entries import Facts, StepLimits
from pillion.steptime import StepTime, Work

from .correction import Corrected
from .cost import CostModel


@dataclass(frozen=True, slots=True)
class Allowance:
    tokens: int  # rows of the step
    decodes: int  # of which at most so many decodes


def limited(settings: Scheduler, limits: StepLimits) -> Scheduler:
    """The settings with an administrator's limits; what these leave out is as configured."""
    return replace(
        settings,
        max_num_batched_tokens=limits.tokens or settings.max_num_batched_tokens,
        slo_tbt=limits.target or settings.step_target,
    )


LEAST_LEFT = 0.5  # share of the target that a step may take however late a stream is: prompts go on


class Budget:
    """The largest multiple of the tile whose predicted time fits what the tightest stream has left."""

    def __init__(self, settings: Scheduler, facts: Facts, measured: StepTime | None = None) -> None:
        """`measured`: the executor's cost model; without one, one is learned."""
        self.tile = min(settings.tile or facts.tile, facts.max_step_tokens)
        self.cost: Corrected | CostModel = Corrected(measured) if measured else CostModel(self.tile)
        self.most = facts.max_step_tokens  # that a step can compute at all
        self.stages = facts.pp
        self.bound(settings)
        self._least = settings.min_prefill_share
        self._turns = settings.prefill_guard == "turns"

    def bound(self, settings: Scheduler) -> None:
        """From now on by these settings' limit and target; what the cost model has learned stays."""
        self.limit = min(settings.max_num_batched_tokens or self.most, self.most)
        target = settings.step_target
        self.target = inf if target is None else target
        self._left = self.target
        self._grown = settings.max_step_seconds or 2 * self.target
        self._repeated = min(settings.multi_step_seconds, self.target)

    def hurry(self, left: float) -> None:
        """`left`: seconds that the next step may take until the first stream's next token is due.

        Those that are late already do not stop the prompts, nor do streams that are early make a step longer.
        """
        self._left = min(max(left, LEAST_LEFT * self.target), self.target)

    def allow(
        self,
        decodes: int,
        context: int,
        prefill_start: int | None,
        streams: bool = False,
        scored: bool = False,
    ) -> Allowance:
        """`context`: the decodes' positions. `prefill_start`: where the first prompt goes on, if any.

        `streams`: others decode in the steps beside this one, and wait for it at each stage. `scored`: the
        prompts' rows go through the head too.
        """
        seconds = self._left if decodes or streams else self._grown
        budget = self._within(seconds, decodes, context, prefill_start or 0, scored)
        return self.share(budget, decodes, prefill_start is not None)

    def share(self, budget: int, decodes: int, prompts: bool) -> Allowance:
        """`budget` tokens between decodes and, if there are any, prompts.

        A minimum share for prompts holds against decodes, and so against the time target: the step is
        stretched over the budget, or decodes take turns. Nothing goes over the executor's own limit.
        """
        if not prompts:
            tokens = max(budget, min(decodes, self.most))
            return Allowance(tokens, min(decodes, tokens))
        least = ceil(self._least * budget)
        if decodes + least <= budget:
            return Allowance(budget, decodes)
        if self._turns:
            tokens = max(budget, min(least + 1, self.most))
        else:
            # The rows up to the next tile cost nothing.
            tokens = min(-(-(decodes + least) // self.tile) * self.tile, self.most)
        return Allowance(tokens, min(decodes, max(tokens - least, 1)))

    def steps(self, work: Work, ahead: float) -> int:
        """How many steps like this one a plan may have, at least one, if it is all that there is to do.

        `ahead`: seconds that the plans in flight still take.
        """
        if not self.cost.known:
            return 1
        return max(1, int((self._repeated - ahead) / self.seconds(work)))

    def full(self, decodes: int, context: int) -> Allowance:
        """Of a step with as many prompt tokens as it may have, and no stream late."""
        budget = self._within(self.target if decodes else self._grown, decodes, context, 0)
        return self.share(budget, decodes, True)

    def seconds(self, work: Work) -> float:
        """Predicted, and never nothing."""
        return max(self.cost.predict(work), 1e-6)

    def _within(self, seconds: float, decodes: int, context: int, start: int, scored: bool = False) -> int:
        tile = self.tile
        if self.limit < tile:
            return self.limit
        low, high = 1, self.limit // tile
        while low < high:
            middle = (low + high + 1) // 2
            work = one_prompt(middle * tile, decodes, context, start, scored)
            if self.cost.bound(work) <= seconds:
                low = middle
            else:
                high = middle - 1
        return low * tile


def one_prompt(rows: int, decodes: int, context: int, start: int, scored: bool = False) -> Work:
    """Of a step that the decodes leave to one prompt, which goes on at `start` and does not end."""
    chunk = max(rows - decodes, 0)
    pairs = chunk * (start + chunk / 2)
    sampled = decodes + (chunk if scored else 0)
    return Work(rows, decodes, context + decodes, int(chunk > 0), pairs, sampled)
