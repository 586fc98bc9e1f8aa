"""Request-level batching: a batch runs to its end before the next one is let in."""

from ..budget import Budget
from ..plan import Draft
from ..roster import Roster
from .placing import Verdict, admit, advance, decode, ready, whole
from .turn import Turn, decodes_alone, prompts_alone


class RequestLevel:
    """FasterTransformer's policy (Sarathi-Serve, algorithm 1): all prompts, then decodes until all are done.

    KV for all that the batch may hold is reserved. Over stages the batch goes in as many parts.
    """

    reserves = True
    batches = True

    def compose(self, roster: Roster, draft: Draft, budget: Budget) -> int:
        decoding, prefilling, waiting = roster.turn
        if not decoding and not prefilling:
            for sequence in tuple(waiting):
                if admit(roster, draft, sequence, lambda left: left) is Verdict.FULL:
                    break
        room = whole(draft, budget)
        for sequence in tuple(roster.turn[1]):
            if not roster.full(draft):
                advance(roster, draft, sequence, room)
        if not draft.rows:
            decode(roster, draft, ready(roster, draft), budget.most)
        return budget.most

    def turn(self, budget: Budget, decodes: int, context: int, left: int) -> Turn:
        """Prompts, and before them what the longest of the batch has to come."""
        turn: Turn = ((prompts_alone(budget), 1),)
        return (*turn, (decodes_alone(decodes, context), max(left, 1))) if decodes else turn

    def fits(self, budget: Budget, decodes: int, context: int) -> bool:
        return decodes <= budget.most
