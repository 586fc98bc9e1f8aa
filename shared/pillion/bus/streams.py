"""Reading and writing streams. Every entry has one field, `e`, with the encoded payload."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from pillion.actors import Exit, Stop
from pillion.bus.connection import UNREACHABLE, Connection, retrying
from pillion.bus.lease import Lease
from pillion.bus.scripts import DISMISS, PARDON, DataLost, LeaseLost

log = logging.getLogger(__name__)

MAX_DELIVERIES = 5
HARMLESS = 5.0  # seconds that a holder lives with what it took over, until that counts as handed out once
BLOCK = 5.0  # seconds that one read waits at the server


@dataclass(frozen=True, slots=True)
class Entry:
    id: str
    payload: bytes
    deliveries: int = 1  # how often it was handed out; more than MAX_DELIVERIES goes to the dead letters


async def append(connection: Connection, key: str, payload: bytes, maxlen: int | None = None) -> str:
    """Adds an entry and answers its id. `maxlen` trims (about) to that length, where that is allowed."""
    trim = () if maxlen is None else ("MAXLEN", "~", maxlen)
    identity: bytes = await connection.call("XADD", key, *trim, "*", "e", payload)
    return identity.decode()


def _entries(answer: Any) -> list[Entry]:
    """The entries of one XREAD or XREADGROUP answer, RESP2 or RESP3, less the deleted ones."""
    if not answer:
        return []
    pairs = answer.items() if isinstance(answer, dict) else answer
    return [_entry(raw) for _, raws in pairs for raw in raws if raw[1] is not None]


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
            "XREAD", "COUNT", count, "BLOCK", int(block * 1000), "STREAMS", self.key, self.last,
            deadline=block + 10,
        )  # fmt: skip
        entries = _entries(answer)
        if entries:
            self.last = entries[-1].id
        return entries

    async def follow(self, count: int = 256) -> AsyncIterator[list[Entry]]:
        """Batches without end; goes on after Redis was away."""
        while True:
            if entries := await retrying(self.key, lambda: self.read(count)):
                yield entries


class Group:
    """Reads a stream as a member of a group: each entry goes to one member and stays pending until it is
    acknowledged. The group is made on demand, and again if it is lost; that is said, since it means that
    Redis lost data.

    `consumer` must name this object's life and no other's. What it was handed and has not seen (the answer
    was lost with a connection, or its reader was cancelled) it asks for again: it is newer than all it saw.
    """

    def __init__(self, connection: Connection, key: str, group: str, consumer: str) -> None:
        self.connection = connection
        self.key = key
        self.group = group
        self.consumer = consumer
        self.last = "0-0"  # id of the newest entry seen
        self._made = False
        self._unsure = False  # whether an answer was lost, and entries with it

    async def ensure(self) -> None:
        """Makes the stream and the group where they do not exist."""
        try:
            await self.connection.call("XGROUP", "CREATE", self.key, self.group, "0", "MKSTREAM")
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        else:
            if self._made:
                self.last, self._unsure = "0-0", False
                log.error(
                    "%s: the group %s was lost and is made again; Redis lost data", self.key, self.group
                )
        self._made = True

    async def read(self, count: int = 64, block: float = BLOCK) -> list[Entry]:
        """New entries, for this consumer. Waits up to `block` seconds. Raises RedisError."""
        if not self._made:
            await self.ensure()
        again, self._unsure = self._unsure, True
        try:
            answer = await self.connection.call(
                "XREADGROUP", "GROUP", self.group, self.consumer, "COUNT", count,
                "BLOCK", int(block * 1000), "STREAMS", self.key, self.last if again else ">",
                deadline=block + 10,
            )  # fmt: skip
        except ResponseError as error:
            # NOGROUP when it asks, UNBLOCKED when the stream is deleted under a waiting reader.
            if "NOGROUP" not in str(error) and "UNBLOCKED" not in str(error):
                raise
            self._unsure = False
            await self.ensure()
            return []
        entries = _entries(answer)
        if entries:
            self.last = entries[-1].id
        self._unsure = again and bool(entries)  # until all that was missed is here
        return entries

    async def claim_others(self, count: int = 64) -> list[Entry]:
        """Takes over what former consumers hold, by right of the lease and not of idle time.

        A generation may run for minutes, so an old entry is no sign of a dead consumer; the caller must hold
        the lease that the others have lost. Call it before the first `read`, until it is empty. Returns up
        to `count` entries, oldest first; at last none, and the former consumers are forgotten. Raises
        RedisError; called again it leaves out nothing.
        """
        if not self._made:
            await self.ensure()
        taken: list[Entry] = []
        while not taken:
            pending = await self.connection.call(
                "XPENDING", self.key, self.group, "(" + self.last, "+", count
            )
            if not pending:
                await DISMISS(self.connection, [self.key], [self.group, self.consumer])
                break
            deliveries = {identity: count for identity, _, _, count in pending}
            claimed = await self.connection.call(
                "XCLAIM", self.key, self.group, self.consumer, 0, *deliveries
            )
            # An entry that was deleted while it was pending comes back as nil, or not at all.
            taken = [
                Entry(entry.id, entry.payload, deliveries[entry.id.encode()] + 1)
                for entry in (_entry(raw) for raw in claimed if raw and raw[1])
            ]
            self.last = pending[-1][0].decode()
        return taken

    async def pardon(self, lease: Lease, deliveries: int = 1) -> int:
        """What this consumer holds counts as handed out `deliveries` times, and not as often as others held
        it and were ended: it has killed nobody. Answers of how many entries that was not so. Raises Stop
        where the lease is lost, RedisError."""
        args = [lease.epoch, self.group, self.consumer, deliveries]
        try:
            return int(await PARDON(lease.connection, [lease.key, self.key], args))
        except LeaseLost as error:
            raise Stop(Exit.LEASE_LOST, str(error)) from None
        except DataLost:
            return 0  # with the data the count is gone

    async def outlive(self, lease: Lease) -> None:
        """Pardons what was taken over, once this process has lived with it for a while. Raises Stop."""
        await asyncio.sleep(HARMLESS)
        if pardoned := await retrying("pardon", lambda: self.pardon(lease)):
            log.info("%s: %d entries outlived a holder and are not to blame", self.key, pardoned)

    async def hand_on(self, lease: Lease) -> None:
        """For an orderly end: whoever comes next is the first to hold what is left."""
        try:
            await retrying("pardon", lambda: self.pardon(lease, deliveries=0), give_up_after=1.0)
        except UNREACHABLE as error:
            log.warning(
                "%s: Redis cannot be reached, what is left counts as held before: %s", self.key, error
            )

    async def follow(self, count: int = 64) -> AsyncIterator[list[Entry]]:
        """Batches of new entries without end; goes on after Redis was away."""
        while True:
            if entries := await retrying(self.key, lambda: self.read(count)):
                yield entries
