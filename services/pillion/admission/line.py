"""The line of waiting requests: by priority and ageing, within a priority by fair shares, then by arrival."""

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from pillion.admission.fair import Shares
from pillion.contracts.entries import Request


@dataclass(slots=True)
class Waiting:
    """A request that no replica has room for yet."""

    request: Request
    entry: str  # its entry of the `submit` stream, unacknowledged as long as it waits
    since: float  # when admission read it, seconds since the epoch
    tokens: int  # prompt tokens to compute, over all choices, if no prefix is found
    suffix: int  # the same, less what prefixes are expected to save
    output: float  # tokens that all choices are expected to bring
    cancelled: set[int] = field(default_factory=set)  # choices

    @property
    def choices(self) -> int:
        return len(self.request.prompts) * self.request.n

    @property
    def share(self) -> float:
        """What it counts for in its tenant's share, tokens."""
        return self.suffix + self.output


EntryId = tuple[int, int]


def entry_id(text: str) -> EntryId:
    """Entry ids compare as pairs of numbers, not as text."""
    milliseconds, _, sequence = text.partition("-")
    return int(milliseconds), int(sequence or 0)


def prompt_tokens(request: Request) -> int:
    """Prompt tokens to compute, over all choices, if no prefix is found."""
    return request.n * sum(map(len, request.prompts))


Place = tuple[float, EntryId, str]  # arrival, entry, request
Queues = dict[str, list[Place]]  # by tenant, each in order


@dataclass(frozen=True, slots=True)
class Ahead:
    """What goes before a request."""

    tokens: int = 0  # prompt tokens to compute
    sequences: int = 0


class Line:
    """Requests in the order in which they are let in; each id stands in it once.

    Waiting `ageing` seconds weighs as much as one level of priority: the priority whose oldest request has
    the best claim comes first, and in it the tenant with the least counter, with its oldest request.
    """

    def __init__(self, ageing: float, shares: Shares) -> None:
        self.tokens = 0  # of all that wait
        self._ageing = ageing
        self._shares = shares
        self._waiting: dict[str, Waiting] = {}
        self._levels: dict[int, Queues] = {}  # by priority
        self._counts: dict[str, int] = {}  # waiting requests by tenant

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiting]:
        """In order. What the loop's body removes does not disturb it, and what it counts is looked at."""
        turns = [_Turns(level * self._ageing, queues, self._shares) for level, queues in self._levels.items()]
        while turns:
            turn = min(turns, key=_Turns.claim)
            yield self._waiting[turn.take()]
            if turn.over:
                turns.remove(turn)

    def get(self, request: str) -> Waiting | None:
        return self._waiting.get(request)

    def add(self, waiting: Waiting) -> None:
        request = waiting.request
        if request.tenant not in self._counts:
            self._shares.wake(request.tenant, self._counts)
        self._waiting[request.id] = waiting
        queues = self._levels.setdefault(request.priority, {})
        insort(queues.setdefault(request.tenant, []), _place(waiting))
        self._counts[request.tenant] = self._counts.get(request.tenant, 0) + 1
        self.tokens += waiting.tokens

    def remove(self, request: str) -> Waiting:
        """Raises KeyError."""
        waiting = self._waiting.pop(request)
        priority, tenant = waiting.request.priority, waiting.request.tenant
        queues = self._levels[priority]
        queues[tenant].remove(_place(waiting))
        if not queues[tenant]:
            del queues[tenant]
        if not queues:
            del self._levels[priority]
        self._counts[tenant] -= 1
        if not self._counts[tenant]:
            del self._counts[tenant]
        self.tokens -= waiting.tokens
        return waiting

    def moved(self, request: str, entry: str) -> None:
        """It stands in another entry now. Raises KeyError."""
        waiting = self.remove(request)
        waiting.entry = entry
        self.add(waiting)

    def ahead(self, waiting: Waiting) -> Ahead:
        """What would be let in before this one, were it added and nothing else came."""
        request, place, shares = waiting.request, _place(waiting), self._shares
        tenant = request.tenant
        queues = self._levels.get(request.priority, {})
        before = [self._waiting[other[2]] for other in queues.get(tenant, ()) if other < place]
        counter = shares[tenant] if tenant in self._counts else shares.awake(tenant, self._counts)
        # Its turn is when its tenant's counter has come so far; till then others with less go first.
        turn = counter + sum(shares.price(tenant, one.share) for one in before), place
        for other, queue in queues.items():
            counter = shares[other]
            for one in queue if other != tenant else ():
                if (counter, one) > turn:
                    break
                before.append(self._waiting[one[2]])
                counter += shares.price(other, before[-1].share)
        claim = request.priority * self._ageing + request.arrival
        for level, queues in self._levels.items():
            if level != request.priority:
                places = (one for queue in queues.values() for one in queue)
                before += [self._waiting[p[2]] for p in places if level * self._ageing + p[0] < claim]
        return Ahead(sum(one.suffix for one in before), sum(one.choices for one in before))

    def latest_of_most(self, tenant: str) -> Waiting | None:
        """The last of the tenant that has most in line; None where no tenant has more than this one."""
        most = max(self._counts, key=lambda other: (self._counts[other], other == tenant))
        if most == tenant:
            return None
        level = max(level for level, queues in self._levels.items() if most in queues)
        return self._waiting[self._levels[level][most][-1][2]]


class _Turns:
    """One walk through one priority's queues."""

    def __init__(self, handicap: float, queues: Queues, shares: Shares) -> None:
        self._handicap = handicap
        self._shares = shares
        self._left = {tenant: queue[::-1] for tenant, queue in queues.items()}
        self._least = [(shares[tenant], queue[0], tenant) for tenant, queue in queues.items()]
        self._oldest = [(queue[0], tenant) for tenant, queue in queues.items()]
        heapify(self._least)
        heapify(self._oldest)

    @property
    def over(self) -> bool:
        return not self._left

    def claim(self) -> float:
        """The arrival of the oldest that has not had its turn, as it counts against other priorities."""
        while True:
            place, tenant = self._oldest[0]
            if self._left.get(tenant, (None,))[-1] == place:
                return self._handicap + place[0]
            heappop(self._oldest)

    def take(self) -> str:
        """The next one's request."""
        while True:
            counter, place, tenant = self._least[0]
            if counter != self._shares[tenant]:  # it was counted for since
                heappop(self._least)
                heappush(self._least, (self._shares[tenant], place, tenant))
                continue
            heappop(self._least)
            left = self._left[tenant]
            left.pop()
            if left:
                heappush(self._least, (counter, left[-1], tenant))
                heappush(self._oldest, (left[-1], tenant))
            else:
                del self._left[tenant]
            return place[2]


def _place(waiting: Waiting) -> Place:
    return waiting.request.arrival, entry_id(waiting.entry), waiting.request.id
