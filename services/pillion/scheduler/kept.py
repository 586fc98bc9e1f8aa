"""The latest records, to be put back should Redis lose them. Pure; times are passed in."""

from collections import OrderedDict
from dataclasses import dataclass

CAPACITY = 16 << 20  # bytes


@dataclass(frozen=True, slots=True)
class _Record:
    payload: bytes | None  # None where there was no room for it any more
    until: float


class Kept:
    """As many as there is room for; of the others it is only known that Redis keeps them."""

    def __init__(self, seconds: float, capacity: int = CAPACITY) -> None:
        """`seconds`: how long Redis keeps a record."""
        self._seconds = seconds
        self._room = capacity
        self._records: OrderedDict[str, _Record] = OrderedDict()
        self._full: OrderedDict[str, int] = OrderedDict()  # size of those that are whole

    def add(self, request: str, payload: bytes, now: float) -> None:
        self.drop(request)
        self._records[request] = _Record(payload, now + self._seconds)
        self._full[request] = len(payload)
        self._room -= len(payload)
        while self._room < 0:
            oldest, size = self._full.popitem(last=False)
            self._records[oldest] = _Record(None, self._records[oldest].until)
            self._room += size
        while (first := next(iter(self._records))) != request and self._records[first].until <= now:
            self.drop(first)

    def drop(self, request: str) -> None:
        """It is no longer the last word on the request."""
        if self._records.pop(request, None) is not None:
            self._room += self._full.pop(request, 0)

    def present(self, now: float) -> dict[str, bytes]:
        records = self._records.items()
        return {name: record.payload for name, record in records if record.payload and record.until > now}

    def missing(self, now: float) -> int:
        """How many records Redis should have that are not here."""
        return sum(record.payload is None and record.until > now for record in self._records.values())
