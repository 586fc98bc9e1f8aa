"""Requests, facts and heartbeats; and a stack's Redis as admission's neighbours see it."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from pillion.bus import Connection, Entry, Keys, Tail, append
from pillion.bus.loss import generation
from pillion.contracts.entries import (
    Cancel,
    Facts,
    Heartbeat,
    Request,
    Sampling,
    StepOutput,
    decode,
    encode,
)

_NUMBERS = itertools.count()


def make_facts(**changes: Any) -> Facts:
    values = {
        "model": "demo", "fingerprint": "f", "max_model_len": 1000, "vocab_size": 320, "end_tokens": (2,),
        "block_size": 16, "num_blocks": 101, "max_num_seqs": 8, "max_step_tokens": 512, "tile": 16,
        "dtype": "float32", "backend": "torch",
    }  # fmt: skip
    return Facts(**values | changes)


def make_beat(replica: str = "0", **changes: Any) -> Heartbeat:
    values = {"epoch": 1, "state": "ready", "facts": make_facts(), "credit": 100, "prefill_rate": 100.0}
    return Heartbeat(replica, **values | changes)


def make_request(prompt: int | tuple[int, ...] = 10, **changes: Any) -> Request:
    tokens = prompt if isinstance(prompt, tuple) else (7,) * prompt
    number = next(_NUMBERS)
    values = {
        "id": f"r{number}", "gateway": "g", "model": "demo", "prompts": (tokens,),
        "sampling": Sampling(seed=1),
        "arrival": time.time(), "max_tokens": 5,
    }  # fmt: skip
    return Request(**values | changes)


class Replica:
    """A scheduler's heartbeat, repeated as long as it lives."""

    def __init__(self, neighbours: "Neighbours", beat: Heartbeat) -> None:
        self.beat = beat
        self._neighbours = neighbours

    async def tell(self, **changes: Any) -> None:
        """A heartbeat on change."""
        self.beat = msgspec.structs.replace(self.beat, **changes)
        await self._neighbours.beat(self.beat)

    async def live(self) -> None:
        while True:
            await self._neighbours.beat(self.beat)
            await asyncio.sleep(0.3)


class Neighbours:
    """Does to Redis what gateways and schedulers do, and reads what admission does."""

    def __init__(self, connection: Connection, stack: str) -> None:
        self.connection = connection
        self.keys = Keys(stack)
        self._outs: dict[str, Tail] = {}
        self._lives: list[asyncio.Task[None]] = []

    def replica(self, beat: Heartbeat) -> Replica:
        replica = Replica(self, beat)
        self._lives.append(asyncio.create_task(replica.live()))
        return replica

    async def close(self) -> None:
        for life in self._lives:
            life.cancel()
        await asyncio.gather(*self._lives, return_exceptions=True)
        await self.connection.close()

    async def submit(self, request: Request) -> str:
        return await append(self.connection, self.keys.submit, encode(request))

    async def cancel(self, request: str, choice: int | None = None) -> None:
        if choice is None:
            await self.connection.call("SET", self.keys.tombstone(request), "1", "EX", 60)
        await append(self.connection, self.keys.cancel, encode(Cancel(request, choice)))

    async def beat(self, beat: Heartbeat) -> None:
        """With the data's generation as it is: what a replica holds stands there, if it is not said else."""
        if not beat.generation:
            now = await generation(self.connection, self.keys.marker)
            beat = msgspec.structs.replace(beat, generation=now)
        await self.connection.call("HSET", self.keys.replicas, beat.replica, encode(beat))
        await append(self.connection, self.keys.beats, encode(beat))

    async def ran(self, replica: str = "0") -> list[Request]:
        return [decode(entry.payload, Request) for entry in await self.run_entries(replica)]

    async def run_entries(self, replica: str = "0") -> list[Entry]:
        rows = await self.connection.call("XRANGE", self.keys.run(replica), "-", "+")
        return [Entry(row[0].decode(), row[1][1]) for row in rows]

    async def said(self, gateway: str = "g", count: int = 1, within: float = 60.0) -> list[StepOutput]:
        """The next `count` entries of the gateway's stream."""
        tail = self._outs.setdefault(gateway, Tail(self.connection, self.keys.out(gateway), "0-0"))
        outputs: list[StepOutput] = []
        deadline = time.monotonic() + within
        while len(outputs) < count:
            assert time.monotonic() < deadline, f"{len(outputs)} of {count} answers within {within} s"
            outputs += [decode(entry.payload, StepOutput) for entry in await tail.read(block=0.1)]
        return outputs

    async def pending(self) -> int:
        """Entries of `submit` that are delivered and not settled."""
        return int((await self.connection.call("XPENDING", self.keys.submit, "admission"))[0])

    async def groups(self) -> int:
        return len(await self.connection.call("XINFO", "GROUPS", self.keys.submit))

    async def consumers(self) -> int:
        return len(await self.connection.call("XINFO", "CONSUMERS", self.keys.submit, "admission"))

    async def holders(self) -> dict[str, int]:
        """How many entries each consumer holds; those without are left out."""
        if not await self.connection.call("EXISTS", self.keys.submit) or not await self.groups():
            return {}
        pending = await self.connection.call("XPENDING", self.keys.submit, "admission")
        return {name.decode(): int(count) for name, count in pending[3] or ()}

    async def refused(self, gateway: str = "g") -> int:
        return int(await self.connection.call("XLEN", self.keys.out(gateway)))

    async def submitted(self) -> int:
        return int(await self.connection.call("XLEN", self.keys.submit))


@pytest.fixture
async def neighbours(valkey: Any) -> AsyncIterator[Neighbours]:
    connection = Connection(valkey.url, "test")
    neighbours = Neighbours(connection, "default")
    await connection.call("SET", neighbours.keys.marker, "1-old")  # a stack that has run for long
    yield neighbours
    await neighbours.close()


@pytest.fixture
def make() -> Any:
    """`make.request()`, `make.facts()`, `make.beat()`."""

    class Make:
        request: Callable[..., Request] = staticmethod(make_request)
        facts: Callable[..., Facts] = staticmethod(make_facts)
        beat: Callable[..., Heartbeat] = staticmethod(make_beat)

    return Make
