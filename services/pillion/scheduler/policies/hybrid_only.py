"""Hybrid batches by themselves: all decodes, and whole prompts beside them."""

from ..budget import Allowance, Budget
from ..plan import Draft
from ..roster import Roster
from ..sequence import Sequence
from .fixed_budget import FixedBudget
from .placing import Room, prefill_start, whole


class HybridOnly(FixedBudget):
    """Sarathi-Serve's ablation without chunks (OSDI 2024, table 4); blocks are taken as they are needed."""

    def allow(self, budget: Budget, decodes: list[Sequence], roster: Roster) -> Allowance:
        return budget.share(budget.most, len(decodes), prefill_start(roster) is not None)

    def room(self, draft: Draft, budget: Budget, allowed: Allowance) -> Room:
        return whole(draft, budget)
