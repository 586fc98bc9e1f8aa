"""Reading and writing streams. Every entry has one field, `e`, with the encoded payload."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from pillion.bus.connection import UNREACHABLE, Connection

log = logging.getLogger(__name__)

MAX_DELIVERIES = 5
BLOCK = 5.0  # seconds that one read waits at the server


@dataclass(frozen=True, slots=True)
class Entry:
    id: str
    payload: bytes
    deliveries: int = 1  # how often it was handed out; more than MAX_DELIVERIES goes to the dead letters


class TooLong(Exception):
    """The stream holds as many entries as it may; the producer must refuse."""


async def append(connection: Connection, key: str, payload: bytes, maxlen: int | None = None) -> str:
    """Adds an entry and answers its id. `maxlen` trims (about) to that length, where that is allowed."""
    trim = () if maxlen is None else ("MAXLEN", "~", maxlen)
    identity: bytes = await connection.call("XADD", key, *trim, "*", "e", payload)
    return identity.decode()


async def append_bounded(connection: Connection, key: str, payload: bytes, bound: int) -> str:
    """Adds an entry to a stream that is never trimmed. Raises TooLong instead of growing past `bound`."""
    if await connection.call("XLEN", key) >= bound:
        raise TooLong(f"{key} holds {bound} entries")
    return await append(connection, key, payload)


def _entries(answer: Any) -> list[Entry]:
    """The entries of one XREAD or XREADGROUP answer, RESP2 (list) or RESP3 (dict)."""
    if not answer:
        return []
    pairs = answer.items() if isinstance(answer, dict) else answer
    return [_entry(raw) for _, raws in pairs for raw in raws]


def _entry(raw: Sequence[Any]) -> Entry:
    identity, fields = raw
    if isinstance(fields, dict):
        payload = fields.get(b"e", b"")
    else:
        payload = fields[fields.index(b"e") + 1] if fields and b"e" in fields else b""
    return Entry(identity.decode(), payload)


class Tail:
    """Reads a stream from a position on, without a group: everyone sees everything."""

    def __init__(self, connection: Connection, key: str, last: str = "$") -> None:
        self.connection = connection
        self.key = key
        self.last = last  # id of the last entry seen; "$" until known

    async def start(self) -> None:
        """Fixes the position, so that nothing that comes from now on is missed between reads."""
        if self.last == "$":
            answer = await self.connection.call("XREVRANGE", self.key, "+", "-", "COUNT", 1)
            self.last = answer[0][0].decode() if answer else "0-0"

    async def read(self, count: int = 256, block: float = BLOCK) -> list[Entry]:
        """Waits up to `block` seconds. Raises RedisError."""
        await self.start()
        answer = await self.connection.call(
            "XREAD",
            "COUNT",
            count,
            "BLOCK",
            int(block * 1000),
            "STREAMS",
            self.key,
            self.last,
            deadline=block + 10,
        )
        entries = _entries(answer)
        if entries:
            self.last = entries[-1].id
        return entries

    async def follow(self, count: int = 256) -> AsyncIterator[list[Entry]]:
        """Batches without end; goes on after Redis was away."""
        pause = 0.05
        while True:
            try:
                entries = await self.read(count)
            except UNREACHABLE as error:
                log.warning("%s: Redis cannot be reached, trying again in %.2f s: %s", self.key, pause, error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 2.0)
                continue
            pause = 0.05
            if entries:
                yield entries


class Group:
    """Reads a stream as a member of a group: each entry goes to one member and stays pending until it is
    acknowledged. The group is made on demand, and again if it is lost; that is said, since it means that
    Redis lost data.
    """

    def __init__(self, connection: Connection, key: str, group: str, consumer: str) -> None:
        self.connection = connection
        self.key = key
        self.group = group
        self.consumer = consumer
        self.remade = 0  # how often the group had to be made after the first time
        self._made = False

    async def ensure(self) -> None:
        """Makes the stream and the group where they do not exist."""
        try:
            await self.connection.call("XGROUP", "CREATE", self.key, self.group, "0", "MKSTREAM")
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        else:
            if self._made:
                self.remade += 1
                log.error(
                    "%s: the group %s was lost and is made again; Redis lost data", self.key, self.group
                )
        self._made = True

    async def read(self, count: int = 64, block: float = BLOCK) -> list[Entry]:
        """New entries, for this consumer. Waits up to `block` seconds. Raises RedisError."""
        if not self._made:
            await self.ensure()
        try:
            answer = await self.connection.call(
                "XREADGROUP", "GROUP", self.group, self.consumer, "COUNT", count,
                "BLOCK", int(block * 1000), "STREAMS", self.key, ">", deadline=block + 10,
            )  # fmt: skip
        except ResponseError as error:
            # NOGROUP when it asks, UNBLOCKED when the stream is deleted under a waiting reader.
            if "NOGROUP" not in str(error) and "UNBLOCKED" not in str(error):
                raise
            await self.ensure()
            return []
        return _entries(answer)

    async def claim_others(self, count: int = 64) -> list[Entry]:
        """Takes over what other consumers hold, by right of the lease and not of idle time.

        A generation may run for minutes, so an old entry is no sign of a dead consumer; the caller must hold
        the lease that the others have lost. Returns up to `count` entries, oldest first; call until empty.
        """
        if not self._made:
            await self.ensure()
        taken: list[Entry] = []
        start = "-"
        while not taken:
            pending = await self.connection.call("XPENDING", self.key, self.group, start, "+", count)
            if not pending:
                break
            others = {row[0]: row[3] for row in pending if row[1] != self.consumer.encode()}
            if others:
                claimed = await self.connection.call(
                    "XCLAIM", self.key, self.group, self.consumer, 0, *others
                )
                # An entry that was deleted while it was pending comes back as nil, or not at all.
                taken = [
                    Entry(entry.id, entry.payload, others[entry.id.encode()] + 1)
                    for entry in (_entry(raw) for raw in claimed if raw and raw[1])
                ]
            start = "(" + pending[-1][0].decode()
        return taken

    async def follow(self, count: int = 64) -> AsyncIterator[list[Entry]]:
        """Batches of new entries without end; goes on after Redis was away."""
        pause = 0.05
        while True:
            try:
                entries = await self.read(count)
            except UNREACHABLE as error:
                log.warning("%s: Redis cannot be reached, trying again in %.2f s: %s", self.key, pause, error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 2.0)
                continue
            pause = 0.05
            if entries:
                yield entries
