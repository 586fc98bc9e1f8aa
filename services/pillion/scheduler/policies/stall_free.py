"""Stall-free batching: all decodes, then what is left of the budget for chunks of prompts."""

from enum import Enum, auto

from ..budget import Budget
from ..plan import Draft
from ..roster import Roster
from ..sequence import Sequence, State


class _Verdict(Enum):
    PLACED = auto()
    LATER = auto()  # not in this step, for a reason of its own: others may go before
    FULL = auto()  # no room: nobody goes before it, or it would never get any


class StallFree:
    """Sarathi-Serve's policy (OSDI 2024, algorithm 3), with prefix hits, priorities and preemption."""

    def compose(self, roster: Roster, draft: Draft, budget: Budget) -> int:
        decoding, prefilling, waiting = roster.turn
        ready = [sequence for sequence in decoding if sequence.computed < sequence.limit]
        context = sum([sequence.computed for sequence in ready])
        allowance = budget.allow(len(ready), context, self._prefill_start(roster, prefilling, waiting))
        if allowance.decodes < len(ready):
            ready = ready[: allowance.decodes]
            roster.rotate(roster.decoding.index(ready[-1]) + 1 if ready else 0)
        self._decode(roster, draft, ready)
        _, prefilling, waiting = roster.turn  # decodes may have sent some back
        self._prefill(roster, draft, prefilling[::-1], waiting[::-1], allowance.tokens, budget.tile)
        return allowance.tokens

    @staticmethod
    def _prefill_start(roster: Roster, prefilling: list[Sequence], waiting: list[Sequence]) -> int | None:
        """Where the first prompt goes on; None when no prompt can be placed in this step."""
        if prefilling:
            return prefilling[0].computed
        if not waiting:
            return None
        if roster.free_slots and roster.spare > 0:
            return 0
        first = min([sequence.priority for sequence in waiting])
        return 0 if any(sequence.priority > first for sequence in roster.decoding) else None

    @staticmethod
    def _decode(roster: Roster, draft: Draft, ready: list[Sequence]) -> None:
        at_border = [sequence for sequence in ready if sequence.computed == sequence.capacity]
        if not at_border:
            draft.decode(ready)
            return
        for sequence in at_border:
            # One may have been preempted for another by now. Who finds no victim keeps its blocks and waits.
            if sequence.state is State.DECODING and roster.make_room(sequence, draft):
                roster.reach(sequence, sequence.computed + 1)
        draft.decode([s for s in ready if s.state is State.DECODING and s.computed < s.capacity])

    def _prefill(
        self, roster: Roster, draft: Draft, running: list[Sequence], waiting: list[Sequence],
        tokens: int, tile: int,
    ) -> None:  # fmt: skip
        """Running prompts first, but behind waiting ones of strictly higher priority; the next come last."""
        while draft.tokens < tokens and (running or waiting):
            if waiting and (not running or waiting[-1].priority < running[-1].priority):
                sequence = waiting.pop()
                verdict = self._admit(roster, draft, sequence)
                if verdict is _Verdict.FULL:
                    waiting.clear()
                if verdict is not _Verdict.PLACED:
                    continue
            else:
                sequence = running.pop()
                if sequence.state is not State.PREFILLING:
                    continue  # preempted for one that went before
            self._advance(roster, draft, sequence, tokens - draft.tokens, tile)

    @staticmethod
    def _admit(roster: Roster, draft: Draft, sequence: Sequence) -> _Verdict:
        """Lets the sequence in when its whole suffix fits, if need be at lower priorities' cost."""
        if sequence.step > roster.returned:
            return _Verdict.LATER  # a plan that names it is in flight and may bring tokens
        entries, wait = roster.match(sequence, draft)
        if wait:
            return _Verdict.LATER
        hopeful = False
        while True:
            need = roster.need(sequence, entries)
            if roster.free_slots and roster.spare >= need:
                roster.admit(sequence, entries, draft)
                return _Verdict.PLACED
            victim = roster.victim(sequence, lower_only=True)
            if victim is None or not (hopeful or roster.spare + roster.reclaimable(sequence) >= need):
                return _Verdict.FULL
            hopeful = True
            roster.preempt(victim, draft)

    @staticmethod
    def _advance(roster: Roster, draft: Draft, sequence: Sequence, left: int, tile: int) -> None:
        entries, wait = roster.match(sequence, draft)
        if wait:
            return
        roster.adopt(sequence, entries, draft)
        wanted = min(len(sequence.tokens) - sequence.computed, left)
        while roster.reachable(sequence) < wanted:
            victim = roster.victim(sequence, lower_only=True)
            if victim is None:
                break
            roster.preempt(victim, draft)
        count = min(wanted, roster.reachable(sequence))
        if sequence.computed + count < len(sequence.tokens):
            excess = (draft.tokens + count) % tile
            if count - excess >= tile:
                count -= excess
        if count:
            roster.compute(sequence, count, draft)
