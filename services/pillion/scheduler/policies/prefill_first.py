"""Whole prompts before decodes: a step carries either, and decodes stall while prompts can be let in."""

from ..budget import Budget
from ..plan import Draft
from ..roster import Roster
from .placing import decode, prefill, ready, whole
from .turn import Turn, prompts_alone


class PrefillFirst:
    """vLLM's policy of 2023 (Sarathi-Serve, algorithm 2)."""

    reserves = False
    batches = False

    def compose(self, roster: Roster, draft: Draft, budget: Budget) -> int:
        prefill(roster, draft, whole(draft, budget))
        if not draft.rows:
            decode(roster, draft, ready(roster, draft), budget.most)
        return budget.most

    def turn(self, budget: Budget, decodes: int, context: int, left: int) -> Turn:
        return ((prompts_alone(budget), 1),)

    def fits(self, budget: Budget, decodes: int, context: int) -> bool:
        return decodes <= budget.most
