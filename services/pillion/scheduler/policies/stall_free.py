"""Stall-free batching: all decodes, then what is left of the budget for chunks of prompts."""

from ..budget import Allowance, Budget, one_prompt
from ..plan import Draft
from ..roster import Roster
from ..sequence import Sequence
from .placing import Room, decode, prefill, prefill_start, ready, scored, unfinished
from .turn import Turn


class StallFree:
    """Sarathi-Serve's policy (OSDI 2024, algorithm 3), with a budget that follows from the time target."""

    reserves = False
    batches = False

    def compose(self, roster: Roster, draft: Draft, budget: Budget) -> int:
        decodes = ready(roster, draft)
        allowed = self.allow(budget, decodes, roster)
        decode(roster, draft, decodes, allowed.decodes)
        prefill(roster, draft, self.room(draft, budget, allowed), budget.tile)
        return allowed.tokens

    def allow(self, budget: Budget, decodes: list[Sequence], roster: Roster) -> Allowance:
        context = sum([s.computed for s in decodes])
        streams = bool(decodes or unfinished(roster))  # in this step or in one beside it
        return budget.allow(len(decodes), context, prefill_start(roster), streams, scored(roster))

    def full(self, budget: Budget, decodes: int, context: int) -> Allowance:
        """Of a step with all the prompt tokens that it may have."""
        return budget.full(decodes, context)

    def turn(self, budget: Budget, decodes: int, context: int, left: int) -> Turn:
        allowed = self.full(budget, decodes, context)
        return ((one_prompt(allowed.tokens, allowed.decodes, context, 0), 1),)

    def fits(self, budget: Budget, decodes: int, context: int) -> bool:
        """In a step, within the time target and beside the prompts' minimum share.

        By what steps are likely to take: the budget sees to the rest, and a factor that moves with every step
        would let seats come and go by whole tiles.
        """
        ((work, _),) = self.turn(budget, decodes, context, 0)
        return work.decodes == decodes and budget.cost.predict(work) <= budget.target

    def room(self, draft: Draft, budget: Budget, allowed: Allowance) -> Room:
        return lambda _: allowed.tokens - draft.tokens
