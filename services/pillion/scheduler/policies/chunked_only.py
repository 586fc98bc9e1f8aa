"""Chunked prefills by themselves: a step of chunks and a step of decodes take turns."""

from ..budget import Budget
from ..plan import Draft
from ..roster import Roster
from .placing import decode, prefill, ready


class ChunkedOnly:
    """Sarathi-Serve's ablation without hybrid batches (OSDI 2024, table 4)."""

    reserves = False

    def compose(self, roster: Roster, draft: Draft, budget: Budget) -> int:
        def chunks() -> None:
            prefill(roster, draft, lambda _: budget.limit - draft.tokens, budget.tile)

        def decodes() -> None:
            decode(roster, draft, ready(roster, draft), budget.most)

        for place in (chunks, decodes) if draft.step % 2 else (decodes, chunks):
            if not draft.rows:
                place()
        return budget.limit
