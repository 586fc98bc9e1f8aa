"""Whose work is next where one works for all: fair by tenant, bounded for each. Pure."""

from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """Next is the tenant that was worked for the least, of its work the shortest, of that the eldest.

    Who comes back starts with the least that those who were served had: idling saves nothing up.
    """

    def __init__(self, most: int) -> None:
        """`most` wait for each tenant."""
        self._most = most
        self._lines: dict[str, list[tuple[int, T]]] = {}
        self._had: dict[str, float] = {}  # seconds; of tenants ahead of `_least`, and of those who wait
        self._least = 0.0

    def add(self, tenant: str, size: int, work: T) -> bool:
        """False where too much of the tenant's waits."""
        line = self._lines.setdefault(tenant, [])
        if len(line) >= self._most:
            return False
        self._had[tenant] = max(self._had.get(tenant, 0.0), self._least)
        line.append((size, work))
        return True

    def take(self) -> tuple[str, T] | None:
        """The next, with its tenant; None where nothing waits."""
        if not self._lines:
            return None
        tenant = min(self._lines, key=self._had.__getitem__)
        self._least = self._had[tenant]
        self._had = {one: had for one, had in self._had.items() if one in self._lines or had > self._least}
        size, work = min(self._lines[tenant], key=lambda entry: entry[0])
        self._remove(tenant, (size, work))
        return tenant, work

    def charge(self, tenant: str, seconds: float) -> None:
        """So long somebody worked for the tenant."""
        self._had[tenant] = self._had.get(tenant, self._least) + seconds

    def drop(self, tenant: str, work: T) -> None:
        """Nobody wants it any more."""
        for entry in self._lines.get(tenant, ()):
            if entry[1] is work:
                self._remove(tenant, entry)
                return

    def _remove(self, tenant: str, entry: tuple[int, T]) -> None:
        line = self._lines[tenant]
        line.remove(entry)
        if not line:
            del self._lines[tenant]
