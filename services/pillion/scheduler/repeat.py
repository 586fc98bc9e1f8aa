"""Several decode steps in one plan, while a few sequences run alone: what a plan costs is paid once for all.

An arrival waits for what is in flight, so all of that together is kept short.
"""

from .budget import Budget
from .plan import Draft
from .roster import Roster
from .sequence import Sequence

FEW = 4  # sequences
MOST = 8  # steps of a plan


def repeat(draft: Draft, roster: Roster, budget: Budget, ahead: float) -> None:
    """Grants the draft's decodes more tokens where there is nothing else to do and blocks are there for them.

    `ahead`: seconds that the plans in flight still take.
    """
    rows, pool = draft.rows, roster.pool
    if len(rows) > FEW or draft.decodes < len(rows) or not _alone(draft, roster):
        return
    most = 1 + max(sequence.limit - sequence.computed for sequence in rows)
    steps = min(MOST, most, budget.steps(draft.work, ahead))
    while sum(max(pool.blocks_for(_end(s, steps)) - len(s.blocks), 0) for s in rows) > pool.available:
        steps -= 1
    if steps > 1:
        for sequence in rows:
            roster.reach(sequence, _end(sequence, steps))
        draft.repeat(steps)


def _alone(draft: Draft, roster: Roster) -> bool:
    """Whether nobody waits, prefills, or could decode elsewhere than in this draft."""
    return not (roster.waiting or roster.prefilling or roster.suspect) and all(
        sequence.step == draft.step or sequence.computed >= sequence.limit for sequence in roster.decoding
    )


def _end(sequence: Sequence, steps: int) -> int:
    """The position behind the last that is computed; the draft has computed the first step's."""
    return min(sequence.computed + steps - 1, sequence.limit)
