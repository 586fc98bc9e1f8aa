"""How decodes and prompts are placed into a step: what all policies are made of."""

from collections.abc import Callable
from enum import Enum, auto
from math import ceil

from ..budget import Budget
from ..plan import Draft
from ..roster import Roster
from ..sequence import Sequence, State
from ..victims import last, lower

UNEQUAL = 0.125  # of an equal share, that a step may have over it
Room = Callable[[int], int]
"""How many tokens the step takes of a prompt that has so many left; 0 or less: none, of it or any other."""


class Verdict(Enum):
    PLACED = auto()
    LATER = auto()  # not in this step, for a reason of its own: others may go before
    FULL = auto()  # no room: nobody goes before it, or it would never get any


def whole(draft: Draft, budget: Budget) -> Room:
    """Prompts go whole: several in a step while its tokens keep the limit, else one by itself.

    A prompt is only split where the step would be more than the executor can compute.
    """

    def room(left: int) -> int:
        if draft.tokens + left <= budget.limit:
            return left
        return 0 if draft.chunks else budget.most - draft.tokens

    return room


def unfinished(roster: Roster) -> list[Sequence]:
    """The decodes that still get tokens."""
    return [sequence for sequence in roster.turn[0] if sequence.computed < sequence.limit]


def ready(roster: Roster, draft: Draft) -> list[Sequence]:
    """The decodes that can get a token in this step.

    Over stages each has its turn in one of as many steps as there are stages, and these share them equally;
    but who is moved to the next waits for one step more, so beside prompts, which fill each step up, the
    shares may differ.
    """
    decodes = unfinished(roster)
    if roster.stages == 1:
        return decodes
    before, behind = (len(decodes) * step // roster.stages for step in (draft.step, draft.step + 1))
    most = max(behind - before, 1)
    if roster.prefilling:
        most += ceil(UNEQUAL * most)
    brought = roster.brought(draft)
    return [sequence for sequence in decodes if sequence.step <= brought][:most]


def prefill_start(roster: Roster) -> int | None:
    """Where the first prompt goes on; None when no prompt can be placed in this step."""
    _, prefilling, waiting = roster.turn
    if prefilling:
        return prefilling[0].computed
    if not waiting:
        return None
    if roster.free_slots and roster.spare > 0:
        return 0
    first = min([sequence.priority for sequence in waiting])
    return 0 if any(sequence.priority > first for sequence in roster.decoding) else None


def scored(roster: Roster) -> bool:
    """Whether rows of the prompts that come next go through the head."""
    _, prefilling, waiting = roster.turn
    return any(sequence.scores for sequence in (*prefilling, *waiting[:1]))


def decode(roster: Roster, draft: Draft, ready: list[Sequence], most: int) -> None:
    """Gives each a token, or so many of them in turns; some may send others back for their blocks."""
    if most < len(ready):
        ready = ready[:most]
        roster.rotate(roster.decoding.index(ready[-1]) + 1 if ready else 0)
    at_border = [sequence for sequence in ready if sequence.computed == sequence.capacity]
    if not at_border:
        draft.decode(ready)
        return
    for sequence in at_border:
        # One may have been preempted for another by now. Who finds no victim keeps its blocks and waits.
        if sequence.state is State.DECODING and roster.make_room(sequence, draft):
            roster.reach(sequence, sequence.computed + 1)
    draft.decode([s for s in ready if s.state is State.DECODING and s.computed < s.capacity])


def prefill(roster: Roster, draft: Draft, room: Room, tile: int = 1) -> None:
    """Running prompts first, but behind waiting ones of strictly higher priority; the next come last."""
    _, prefilling, waiting = roster.turn
    running, waiting = prefilling[::-1], waiting[::-1]
    while (running or waiting) and not roster.full(draft) and room(1) > 0:
        if waiting and (not running or waiting[-1].priority < running[-1].priority):
            sequence = waiting.pop()
            verdict = admit(roster, draft, sequence, room)
            if verdict is Verdict.FULL:
                waiting.clear()
            if verdict is not Verdict.PLACED:
                continue
        else:
            sequence = running.pop()
            if sequence.state is not State.PREFILLING:
                continue  # preempted for one that went before
        advance(roster, draft, sequence, room, tile)


def admit(roster: Roster, draft: Draft, sequence: Sequence, room: Room) -> Verdict:
    """Lets the sequence in when its whole claim fits, if need be at lower priorities' cost."""
    if sequence.step > roster.returned:
        return Verdict.LATER  # a plan that names it is in flight and may bring tokens
    entries, wait = roster.match(sequence, draft)
    if wait:
        return Verdict.LATER
    if room(len(sequence.tokens) - len(entries) * roster.pool.block_size) <= 0:
        return Verdict.FULL
    hopeful = False
    while True:
        need = roster.need(sequence, entries)
        if roster.free_slots and roster.spare >= need:
            roster.admit(sequence, entries, draft)
            return Verdict.PLACED
        victim = last(lower(sequence, roster.running))
        if victim is None or not (hopeful or roster.spare + roster.reclaimable(sequence) >= need):
            return Verdict.FULL
        hopeful = True
        roster.preempt(victim, draft)


def advance(roster: Roster, draft: Draft, sequence: Sequence, room: Room, tile: int = 1) -> None:
    """Places the next tokens of a running prompt, as many as step and blocks have room for.

    What does not end its prompt is trimmed so that the step's rows are a multiple of the tile.
    """
    entries, wait = roster.match(sequence, draft)
    left = len(sequence.tokens) - sequence.computed - len(entries) * roster.pool.block_size
    wanted = min(left, room(left))
    if wait or wanted <= 0:
        return
    roster.adopt(sequence, entries, draft)
    while roster.reachable(sequence) < wanted:
        victim = last(lower(sequence, roster.running))
        if victim is None:
            break
        roster.preempt(victim, draft)
    count = min(wanted, roster.reachable(sequence))
    if count < left:
        excess = (draft.tokens + count) % tile
        if count - excess >= tile:
            count -= excess
    if count:
        roster.compute(sequence, count, draft)
