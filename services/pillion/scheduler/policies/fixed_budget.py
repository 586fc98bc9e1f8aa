"""Stall-free batching with a constant budget, --max-num-batched-tokens, and no cost model."""

from ..budget import Allowance, Budget
from ..roster import Roster
from ..sequence import Sequence
from .placing import prefill_start
from .stall_free import StallFree


class FixedBudget(StallFree):
    """Sarathi-Serve's policy as published (OSDI 2024, algorithm 3)."""

    def allow(self, budget: Budget, decodes: list[Sequence], roster: Roster) -> Allowance:
        return budget.share(budget.limit, len(decodes), prefill_start(roster) is not None)

    def full(self, budget: Budget, decodes: int, context: int) -> Allowance:
        return budget.share(budget.limit, decodes, True)

    def fits(self, budget: Budget, decodes: int, context: int) -> bool:
        """In a step, beside the prompts' minimum share: how long that takes is nobody's promise."""
        return self.full(budget, decodes, context).decodes == decodes
