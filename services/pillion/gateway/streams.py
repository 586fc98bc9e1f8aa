"""The gateway's one reader of its `out` stream: each request's items go to an inbox of its own."""

import asyncio
from collections import deque
from collections.abc import Iterable
from contextlib import suppress

from pillion.bus import Connection, Entry, Keys, Reader, Tail
from pillion.bus.journal import read_items, read_record
from pillion.contracts.entries import Refusal, StepOutput, Tokens
from pillion.gateway.heads import items

CAPACITY = 512  # items of one request that wait for a slow client; what is more is read from the journal
AT_ONCE = 8  # streams that are woken in one turn of the event loop


class Inbox:
    """What came for one life of a request and was not taken yet. Bounded; never holds up the reader."""

    def __init__(self, request: str, life: int = 0, capacity: int = CAPACITY) -> None:
        self.request = request
        self.life = life
        self.replica = ""  # whose journal has the items
        self.lost = False  # items came that there was no room for
        self.begun = False  # something was taken
        self._items: deque[Tokens] = deque()
        self._refusal: Refusal | None = None
        self._capacity = capacity
        self._news = asyncio.Event()

    def put(self, item: Tokens, replica: str) -> None:
        self.replica = replica or self.replica
        if len(self._items) < self._capacity:
            self._items.append(item)
        else:
            self.lost = True

    def wake(self) -> None:
        """Who waits gets what was put, unless it was taken meanwhile."""
        if self._items or self.lost:
            self._news.set()

    def refuse(self, refusal: Refusal) -> None:
        if refusal.life in (None, self.life):
            self._refusal = refusal
            self._news.set()

    def look_back(self) -> None:
        """Something may have come that was lost on the way."""
        self.lost = True
        self._news.set()

    async def take(self, seconds: float) -> list[Tokens] | Refusal:
        """All items that came, after waiting for the first. [] when none came in time, or some were lost."""
        if not (self._items or self._refusal or self.lost):
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._news.wait()
        if self._refusal is not None:
            return self._refusal
        items = list(self._items)
        self._items.clear()
        self.begun |= bool(items)
        return items


class Streams:
    """Demultiplexes the `out` stream, and reads what it missed from journal and record."""

    def __init__(self, tail: Connection, reads: Connection, keys: Keys, gateway: str, read: Reader) -> None:
        """`tail` blocks on the stream; `reads` is for the rest."""
        # The stream is this process's own, so it is read from its beginning.
        self._tail = Tail(tail, keys.out(gateway), last="0-0")
        self._reads = reads
        self._read = read
        self._keys = keys
        self._inboxes: dict[str, list[Inbox]] = {}  # several while a stream moves to another connection
        self.late = 0  # items for requests that are over

    def __len__(self) -> int:
        return len(self._inboxes)

    def open(self, request: str, life: int = 0) -> Inbox:
        """From now on what comes for the request goes here too."""
        inbox = Inbox(request, life)
        self._inboxes.setdefault(request, []).append(inbox)
        return inbox

    def close(self, inbox: Inbox) -> None:
        inboxes = self._inboxes[inbox.request]
        inboxes.remove(inbox)
        if not inboxes:
            del self._inboxes[inbox.request]

    def look_back(self, replica: str) -> None:
        """All requests of the replica read its journal, and their records."""
        for inboxes in self._inboxes.values():
            for inbox in inboxes:
                if inbox.replica == replica:
                    inbox.look_back()

    async def run(self) -> None:
        """An actor. Ends only by cancellation."""
        async for entries in self._tail.follow():
            news: dict[Inbox, None] = {}
            for entry in entries:
                self._deliver(entry, news)
            await _wake(news)

    async def missed(self, inbox: Inbox) -> list[Tokens]:
        """All items of the request so far: its record's, and what its replica has journalled since.

        Raises RedisError.
        """
        record = await read_record(self._reads, self._keys, inbox.request, self._read)
        kept = [] if record is None else items(record)
        if (record is not None and record.finished) or not inbox.replica:
            return kept
        journal = await read_items(self._reads, self._keys, inbox.replica, self._read, (inbox.request,))
        return kept + journal

    def _deliver(self, entry: Entry, news: dict[Inbox, None]) -> None:
        output = self._read(entry.payload, StepOutput, f"{entry.id} of the out stream")
        if output is None:
            return  # its items are in the journal too; who misses them will find the gap
        for item in output.items:
            inboxes = self._inboxes.get(item.request, ())
            self.late += not inboxes
            for inbox in inboxes:
                inbox.put(item, output.replica)
                news[inbox] = None
        for refusal in output.refusals:
            for inbox in self._inboxes.get(refusal.request, ()):
                inbox.refuse(refusal)


async def _wake(inboxes: Iterable[Inbox]) -> None:
    """Few at a time: a new request takes some ten turns of the event loop until it is submitted, and each
    would else be as long as all streams need for their tokens. Those that have had none go first.
    """
    for number, inbox in enumerate(sorted(inboxes, key=lambda inbox: inbox.begun), 1):
        inbox.wake()
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)
