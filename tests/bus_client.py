"""Plays admission and gateway to a scheduler: writes run entries, reads the `out` stream."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from pillion.bus import Connection, Keys, Reader, append
from pillion.contracts.entries import (
    ChoiceRecord,
    Heartbeat,
    Record,
    Request,
    Sampling,
    StepOutput,
    Tokens,
    decode,
    encode,
)

KEYS = Keys("default")


def _unreadable(kind: str) -> None:
    raise AssertionError(f"a {kind} cannot be read")


READ = Reader(_unreadable)

# What a replica may have left of its requests: see `leave_behind`.
RECORDS = {
    "parked": ChoiceRecord((10, 11), ""),  # its next life brought nothing yet
    "both": ChoiceRecord((20, 21), ""),  # the next life did
    "ended": ChoiceRecord((30,), "length"),
}
JOURNAL = (Tokens("ran", 0, 0, (40,)), Tokens("both", 0, 0, (20, 21, 22)), Tokens("ran", 0, 1, (41, 42)))


def request(name: str, length: int = 20, output: int = 40, **fields: object) -> Request:
    prompt = tuple((7 * index + len(name)) % 250 + 3 for index in range(length))
    sampling = Sampling(seed=5, temperature=1.0, ignore_eos=True)
    return Request(
        **{"id": name, "gateway": "g", "model": "m", "prompts": (prompt,), "sampling": sampling,
           "arrival": time.time(), "max_tokens": output} | fields
    )  # fmt: skip


class Client:
    """Writes run entries and reads the `out` stream."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.items: list[Tokens] = []
        self.refusals: list[str] = []
        self.last = "0-0"

    async def send(self, *requests: Request) -> None:
        """In one round trip, so that they arrive together."""
        entries = [("XADD", KEYS.run("0"), "*", "e", encode(one)) for one in requests]
        await self.connection.pipeline(*entries)

    async def poll(self) -> None:
        answer = await self.connection.call("XRANGE", KEYS.out("g"), "(" + self.last, "+")
        for identity, fields in answer:
            self.last = identity.decode()
            output = decode(fields[1], StepOutput)
            self.items += output.items
            self.refusals += [refusal.message for refusal in output.refusals]

    async def until(self, condition: Callable[[], bool], seconds: float = 150.0) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                await self.poll()
                await asyncio.sleep(0.005)

    def tokens(self, name: str, choice: int = 0) -> list[int]:
        """Joined by position. Each position is there once, and in order."""
        tokens: list[int] = []
        for item in self.items:
            if item.request == name and item.choice == choice:
                assert item.position == len(tokens), "a position is missing or doubled"
                tokens += item.tokens
        return tokens

    def together(self, name: str) -> int:
        """The most tokens that came in one result."""
        return max((len(item.tokens) for item in self.items if item.request == name), default=0)

    def finish(self, name: str) -> str | None:
        return next((item.finish for item in self.items if item.request == name and item.finish), None)

    async def ready(self) -> Heartbeat:
        async with asyncio.timeout(120):
            while (beat := await self.beat()).state != "ready":
                await asyncio.sleep(0.02)
            return beat

    async def beat(self) -> Heartbeat:
        """The replica's last one, once there is any."""
        while (payload := await self.connection.call("HGET", KEYS.replicas, "0")) is None:
            await asyncio.sleep(0.02)
        return decode(payload, Heartbeat)

    async def left(self) -> tuple[int, int]:
        """Entries in the run stream, and those that are pending."""
        pending = await self.connection.call("XPENDING", KEYS.run("0"), "scheduler")
        return await self.connection.call("XLEN", KEYS.run("0")), pending[0]


@asynccontextmanager
async def client(url: str) -> AsyncIterator[Client]:
    connection = Connection(url, "test")
    await connection.call("SET", KEYS.lease("gateway:g"), 1)  # the gateway lives
    try:
        yield Client(connection)
    finally:
        await connection.close()


async def leave_behind(connection: Connection) -> None:
    """The journal and the records of a replica that died, and who held what was recorded."""
    for name, choice in RECORDS.items():
        await connection.call("SET", KEYS.record(name), encode(Record(name, (choice,))))
        await connection.call("SET", KEYS.holder(name), "0")
    for step, item in enumerate(JOURNAL):
        await append(connection, KEYS.journal("0"), encode(StepOutput("0", 1, step, (item,))))
