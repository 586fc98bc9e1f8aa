"""The line of waiting requests: by priority, ageing and arrival."""

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from pillion.contracts.entries import Request


@dataclass(slots=True)
class Waiting:
    """A request that no replica has room for yet."""

    request: Request
    entry: str  # its entry of the `submit` stream, unacknowledged as long as it waits
    since: float  # when admission read it, seconds since the epoch
    tokens: int  # prompt tokens to compute, over all choices
    cancelled: set[int] = field(default_factory=set)  # choices

    @property
    def choices(self) -> int:
        return len(self.request.prompts) * self.request.n


EntryId = tuple[int, int]


def entry_id(text: str) -> EntryId:
    """Entry ids compare as pairs of numbers, not as text."""
    milliseconds, _, sequence = text.partition("-")
    return int(milliseconds), int(sequence or 0)


def prompt_tokens(request: Request) -> int:
    """Prompt tokens to compute, over all choices, if no prefix is found."""
    return request.n * sum(map(len, request.prompts))


class Line:
    """Requests in the order in which they are let in; each id stands in it once.

    Waiting `ageing` seconds weighs as much as one level of priority. All age alike, so the order of two
    requests never changes while they wait and a sorted list holds it.
    """

    def __init__(self, ageing: float) -> None:
        self.tokens = 0  # of all that wait
        self._ageing = ageing
        self._order: list[tuple[float, EntryId, str]] = []
        self._waiting: dict[str, Waiting] = {}

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Waiting]:
        """In order. What the loop's body removes is not disturbed by it."""
        return (self._waiting[id] for _, _, id in tuple(self._order))

    def get(self, request: str) -> Waiting | None:
        return self._waiting.get(request)

    def add(self, waiting: Waiting) -> None:
        self._waiting[waiting.request.id] = waiting
        insort(self._order, self._place(waiting))
        self.tokens += waiting.tokens

    def remove(self, request: str) -> Waiting:
        """Raises KeyError."""
        waiting = self._waiting.pop(request)
        self._order.remove(self._place(waiting))
        self.tokens -= waiting.tokens
        return waiting

    def _place(self, waiting: Waiting) -> tuple[float, EntryId, str]:
        request = waiting.request
        return request.priority * self._ageing + request.arrival, entry_id(waiting.entry), request.id
