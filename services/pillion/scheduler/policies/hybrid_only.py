"""Hybrid batches by themselves: all decodes, and whole prompts beside them."""

from ..budget import Allowance, Budget
from ..plan import Draft
from ..sequence import Sequence
from .fixed_budget import FixedBudget
from .placing import Room, whole


class HybridOnly(FixedBudget):
    """Sarathi-Serve's ablation without chunks (OSDI 2024, table 4); blocks are taken as they are needed."""

    def allow(
        self, budget: Budget, decodes: list[Sequence], prefill_start: int | None, streams: bool
    ) -> Allowance:
        return budget.share(budget.most, len(decodes), prefill_start is not None)

    def room(self, draft: Draft, budget: Budget, allowed: Allowance) -> Room:
        return whole(draft, budget)
