"""The gateway's one reader of its `out` stream: each request's items go to an inbox of its own."""

import asyncio
import logging
from collections import deque

import msgspec

from pillion.bus import Connection, Keys, Tail
from pillion.bus.journal import read_items, read_record
from pillion.contracts.entries import Refusal, StepOutput, Tokens, UnknownSchema, decode

log = logging.getLogger(__name__)

CAPACITY = 512  # items of one request that wait for a slow client; what is more is read from the journal


class Inbox:
    """What came for one request and was not taken yet. Bounded; never holds up the reader."""

    def __init__(self, request: str, capacity: int = CAPACITY) -> None:
        self.request = request
        self.replica = ""  # whose journal has the items
        self.lost = False  # items came that there was no room for
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
        self._news.set()

    def refuse(self, refusal: Refusal) -> None:
        self._refusal = refusal
        self._news.set()

    async def take(self, seconds: float) -> list[Tokens] | Refusal:
        """All items that came, after waiting for the first. [] when none came in time, or some were lost."""
        if not (self._items or self._refusal or self.lost):
            self._news.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._news.wait()
            except TimeoutError:
                return []
        if self._refusal is not None:
            return self._refusal
        items = list(self._items)
        self._items.clear()
        return items


class Streams:
    """Demultiplexes the `out` stream, and reads what it missed from journal and record."""

    def __init__(self, tail: Connection, reads: Connection, keys: Keys, gateway: str) -> None:
        """`tail` blocks on the stream; `reads` is for the rest."""
        # The stream is this process's own, so it is read from its beginning.
        self._tail = Tail(tail, keys.out(gateway), last="0-0")
        self._reads = reads
        self._keys = keys
        self._inboxes: dict[str, Inbox] = {}
        self.late = 0  # items for requests that are over

    def __len__(self) -> int:
        return len(self._inboxes)

    def open(self, request: str) -> Inbox:
        inbox = self._inboxes[request] = Inbox(request)
        return inbox

    def close(self, request: str) -> None:
        self._inboxes.pop(request, None)

    async def run(self) -> None:
        """An actor. Ends only by cancellation."""
        async for entries in self._tail.follow():
            for entry in entries:
                self._deliver(entry.payload)

    async def missed(self, inbox: Inbox, *, finished: bool = False) -> list[Tokens]:
        """All items of the request so far, from its record or its replica's journal. Raises RedisError.

        `finished` looks at the record only, which is cheap, to find an end that was lost.
        """
        record = await read_record(self._reads, self._keys, inbox.request)
        if record is not None:
            return [
                Tokens(
                    inbox.request, index, 0, choice.tokens, choice.finish, choice.stop_token,
                    choice.cached, choice.logprobs, choice.error,
                )
                for index, choice in enumerate(record.choices)
            ]  # fmt: skip
        if finished or not inbox.replica:
            return []
        return await read_items(self._reads, self._keys, inbox.replica, (inbox.request,))

    def _deliver(self, payload: bytes) -> None:
        try:
            output = decode(payload, StepOutput)
        except (UnknownSchema, msgspec.DecodeError) as error:
            # Its items are in the journal too; who misses them will find the gap.
            log.error("an entry of the out stream cannot be read: %s", error)
            return
        for item in output.items:
            inbox = self._inboxes.get(item.request)
            if inbox is None:
                self.late += 1
            else:
                inbox.put(item, output.replica)
        for refusal in output.refusals:
            inbox = self._inboxes.get(refusal.request)
            if inbox is not None:
                inbox.refuse(refusal)
