"""Whose work is next where one works for all: fair by tenant, within one by sender; bounded. Pure."""

from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

REMEMBERED = 1024  # who had more than the others, and waits for nothing


class Who(NamedTuple):
    """`sender` is only a word of the tenant's: whoever makes up many divides the own share."""

    tenant: str
    sender: str = ""


class Turns(Generic[T]):
    """Next is the tenant that was worked for the least, of it the sender, of that one's work the shortest, of
    that the eldest.
    """

    def __init__(self, most: int, most_of_tenant: int) -> None:
        """`most` wait for each sender, and so many for each tenant."""
        self._most = most
        self._most_of_tenant = most_of_tenant
        self._tenants = _Shares()
        self._senders: dict[str, _Shares] = {}
        self._lines: dict[Who, list[tuple[int, T]]] = {}

    def add(self, who: Who, size: int, work: T) -> bool:
        """False where too much waits already."""
        line = self._lines.get(who, [])
        waiting = sum(len(self._lines[Who(who.tenant, one)]) for one in self._senders.get(who.tenant, ()))
        if len(line) >= self._most or waiting >= self._most_of_tenant:
            return False
        self._lines[who] = line
        self._tenants.enter(who.tenant)
        self._senders.setdefault(who.tenant, _Shares()).enter(who.sender)
        line.append((size, work))
        return True

    def take(self) -> tuple[Who, T] | None:
        """The next, with whose it is; None where nothing waits."""
        if not self._lines:
            return None
        tenant = self._tenants.next()
        self._senders = {one: senders for one, senders in self._senders.items() if self._tenants.knows(one)}
        who = Who(tenant, self._senders[tenant].next())
        entry = min(self._lines[who], key=lambda entry: entry[0])
        self._remove(who, entry)
        return who, entry[1]

    def charge(self, who: Who, seconds: float) -> None:
        """So long somebody worked for them."""
        self._tenants.charge(who.tenant, seconds)
        self._senders[who.tenant].charge(who.sender, seconds)

    def drop(self, who: Who, work: T) -> None:
        """Nobody wants it any more."""
        for entry in self._lines.get(who, ()):
            if entry[1] is work:
                self._remove(who, entry)
                return

    def _remove(self, who: Who, entry: tuple[int, T]) -> None:
        line = self._lines[who]
        line.remove(entry)
        if line:
            return
        del self._lines[who]
        self._senders[who.tenant].leave(who.sender)
        if not list(self._senders[who.tenant]):
            self._tenants.leave(who.tenant)


class _Shares:
    """Who waits, and what each had.

    Who comes back starts with the least that those who were served had: idling saves nothing up.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, None] = {}  # the eldest first
        self._had: dict[str, float] = {}  # seconds; of those ahead of `_least`, and of those who wait
        self._least = 0.0

    def __iter__(self) -> Iterator[str]:
        """Those who wait."""
        return iter(self._waiting)

    def knows(self, name: str) -> bool:
        return name in self._had

    def enter(self, name: str) -> None:
        if name not in self._waiting:
            self._waiting[name] = None
        self._had[name] = max(self._had.get(name, 0.0), self._least)

    def leave(self, name: str) -> None:
        del self._waiting[name]

    def next(self) -> str:
        name = min(self._waiting, key=self._had.__getitem__)
        self._least = self._had[name]
        ahead = [one for one, had in self._had.items() if one not in self._waiting and had > self._least]
        if len(ahead) > REMEMBERED:
            ahead = sorted(ahead, key=self._had.__getitem__)[-REMEMBERED:]
        self._had = {one: self._had[one] for one in (*self._waiting, *ahead)}
        return name

    def charge(self, name: str, seconds: float) -> None:
        self._had[name] = self._had.get(name, self._least) + seconds
