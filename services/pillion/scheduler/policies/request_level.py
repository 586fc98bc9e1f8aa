"""Request-level batching: a batch runs to its end before the next one is let in."""

from ..budget import Budget
from ..plan import Draft
from ..roster import Roster
from .placing import Verdict, admit, advance, decode, ready, whole


class RequestLevel:
    """FasterTransformer's policy (Sarathi-Serve, algorithm 1): all prompts, then decodes until all are done.

    KV for all that the batch may hold is reserved. Over stages the batch goes in as many parts.
    """

    reserves = True

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
