"""Chunked prefills by themselves: a step of chunks and a step of decodes take turns."""

from ..budget import Budget
from ..plan import Draft
from ..roster import Roster
from .placing import decode, prefill, ready
from .turn import Turn, decodes_alone, prompts_alone


class ChunkedOnly:
    """Sarathi-Serve's ablation without hybrid batches (OSDI 2024, table 4)."""

    reserves = False
    batches = False

    def compose(self, roster: Roster, draft: Draft, budget: Budget) -> int:
        def chunks() -> None:
            prefill(roster, draft, lambda _: budget.limit - draft.tokens, budget.tile)

        def decodes() -> None:
            decode(roster, draft, ready(roster, draft), budget.most)

        for place in (chunks, decodes) if draft.step % 2 else (decodes, chunks):
            if not draft.rows:
                place()
        return budget.limit

    def turn(self, budget: Budget, decodes: int, context: int, left: int) -> Turn:
        turn: Turn = ((prompts_alone(budget), 1),)
        return (*turn, (decodes_alone(decodes, context), 1)) if decodes else turn

    def fits(self, budget: Budget, decodes: int, context: int) -> bool:
        return decodes <= budget.most
