"""Which constraints the executor has compiled: nobody whose own is not there yet is let in. Pure.

The executor keeps as many as it has places, each until the place is given to another one.
"""

from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from pillion.contracts.entries import Constraint

from .messages import Compile
from .sequence import Sequence

SIGHT = 64  # waiting sequences, the next to run first, whose constraints are looked at
PATIENCE = 30.0  # seconds for one, after which the executor is late


class Placed(msgspec.Struct, frozen=True, array_like=True):
    """A constraint in its place. `asked`: it is not answered yet."""

    constraint: Constraint
    place: int
    asked: bool


class Grammars:
    """Of one attachment."""

    def __init__(self, places: int) -> None:
        """Without places the executor compiles what it is given, when it is given: nobody waits."""
        self.places = places
        self._free = list(range(places - 1, -1, -1))
        self._known: OrderedDict[Constraint, int] = OrderedDict()  # their places; the last one needed last
        self._asked: dict[int, Constraint] = {}
        self.since = 0.0  # when the first of them was begun

    def ready(self, sequence: Sequence) -> bool:
        """Whether it can be let in for all that its constraint says."""
        constraint = sequence.constraint
        if constraint is None or not self.places:
            return True
        place = self._known.get(constraint)
        return place is not None and place not in self._asked

    def want(self, waiting: list[Sequence], now: float) -> list[Compile]:
        """What to compile for those that are next: in half of the places at most, so that none of them is
        given away before its sequence is let in.
        """
        if not self.places:
            return []
        most = max(1, self.places // 2)
        needed = list(dict.fromkeys(s.constraint for s in waiting[:SIGHT] if s.constraint is not None))[:most]
        for constraint in needed:
            if constraint in self._known:
                self._known.move_to_end(constraint)
        wanted = [constraint for constraint in needed if constraint not in self._known]
        return [self._ask(constraint, now) for constraint in wanted[: most - len(self._asked)]]

    def compiled(self, place: int, now: float) -> None:
        """The executor has it, or will say of each sequence that it cannot be had."""
        if self._asked.pop(place, None) is not None:
            self.since = now

    def overdue(self, now: float) -> float:
        """Seconds that the executor is late with one; 0 where it is not."""
        return max(now - self.since - PATIENCE, 0.0) if self._asked else 0.0

    @property
    def held(self) -> tuple[Placed, ...]:
        """What `go_on` takes up again, with `since`."""
        known = self._known.items()
        return tuple(Placed(constraint, place, place in self._asked) for constraint, place in known)

    def go_on(self, held: Iterable[Placed], since: float) -> None:
        self.since = since
        for each in held:
            self._known[each.constraint] = each.place
            self._free.remove(each.place)
            if each.asked:
                self._asked[each.place] = each.constraint

    def _ask(self, constraint: Constraint, now: float) -> Compile:
        if not self._asked:
            self.since = now
        if self._free:
            place = self._free.pop()
        else:
            oldest = next(known for known, place in self._known.items() if place not in self._asked)
            place = self._known.pop(oldest)
        self._known[constraint] = place
        self._asked[place] = constraint
        return Compile(place, constraint)
