"""Connections to a real Valkey, and a gateway on its bus, as far as the rest of a stack can tell, that joins
what it gets by position.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from pillion.bus import UNREACHABLE, Connection, Keys, append, retrying
from pillion.bus.journal import read_items, read_record
from pillion.contracts.entries import Heartbeat, Request, Sampling, StepOutput, Tokens, decode, encode
from tests.bus_client import READ

KEYS = Keys("default")
GATEWAY = "g"


def request(name: str, length: int = 20, output: int = 300, **fields: object) -> Request:
    prompt = tuple((7 * index + 3 * len(name) + ord(name[-1])) % 250 + 3 for index in range(length))
    values = {
        "id": name, "gateway": GATEWAY, "model": "tiny", "prompts": (prompt,), "arrival": time.time(),
        "sampling": Sampling(seed=5, temperature=1.0, ignore_eos=True), "max_tokens": output,
    }  # fmt: skip
    return Request(**values | fields)  # type: ignore[arg-type]


class Stream:
    """One choice as its client sees it."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.finish: str | None = None
        self.replicas: list[str] = []  # that brought a part, in order
        self.prompt_logprobs: bytes | None = None

    def add(self, item: Tokens, replica: str) -> bool:
        """False for a gap. A position that is known must bring the token that is known."""
        known = len(self.tokens)
        if item.position > known:
            return False
        skip = known - item.position
        held = self.tokens[item.position : item.position + len(item.tokens)]
        assert list(item.tokens[:skip]) == held, "a journalled position has changed"
        told = item.prompt_logprobs or self.prompt_logprobs
        assert self.prompt_logprobs in (None, told), "what was told of the prompt has changed"
        self.prompt_logprobs = told
        if item.tokens[skip:] and replica not in self.replicas[-1:]:
            self.replicas.append(replica)
        self.tokens += item.tokens[skip:]
        self.finish = item.finish or self.finish
        return True


class Gateway:
    """Submits, keeps what is unfinished, and says that it lives."""

    def __init__(self, url: str) -> None:
        self.connection = Connection(url, "test")
        self.keys = KEYS
        self.requests: dict[str, Request] = {}
        self.streams: dict[str, Stream] = {}
        self.refusals: dict[str, str] = {}
        self.gaps = 0
        self.restarted: set[str] = set()  # requests whose first token was published again
        self._last = "0-0"

    async def submit(self, *requests: Request, **changes: object) -> None:
        await self.live()
        for one in requests:
            self.requests[one.id] = one
            self.streams.setdefault(one.id, Stream())
            payload = encode(msgspec.structs.replace(one, **changes))
            await retrying("submit", lambda: append(self.connection, KEYS.submit, payload))  # noqa: B023

    async def submit_again(self) -> None:
        """As after a loss of data: all that is unfinished."""
        unfinished = [one for name, one in self.requests.items() if self.streams[name].finish is None]
        await self.submit(*unfinished, resumed=True)

    async def live(self) -> None:
        key = KEYS.lease(f"gateway:{GATEWAY}")
        await retrying("live", lambda: self.connection.call("SET", key, 1))

    async def poll(self) -> None:
        try:
            answer = await self.connection.call("XRANGE", KEYS.out(GATEWAY), "(" + self._last, "+")
            for identity, fields in answer:
                await self._take(decode(fields[1], StepOutput))
                self._last = identity.decode()
        except UNREACHABLE:
            pass  # later

    async def _take(self, output: StepOutput) -> None:
        for refusal in output.refusals:
            self.refusals[refusal.request] = refusal.message
        for item in output.items:
            stream = self.streams.get(item.request)
            if stream is not None and stream.tokens and item.tokens and not item.position:
                self.restarted.add(item.request)
            if stream is not None and not stream.add(item, output.replica):
                self.gaps += 1
                await self._catch_up(item.request, output.replica)
                assert stream.add(item, output.replica), "tokens are missing from record and journal"

    async def _catch_up(self, name: str, replica: str) -> None:
        record = await read_record(self.connection, KEYS, name, READ)
        items = [] if record is None else [Tokens(name, 0, 0, record.choices[0].tokens)]
        for item in items + await read_items(self.connection, KEYS, replica, READ, (name,)):
            self.streams[name].add(item, replica)

    async def ends(self) -> None:
        """Looks for ends that were lost, as a gateway does where nothing came for long."""
        for name, stream in self.streams.items():
            if stream.finish is None and (record := await read_record(self.connection, KEYS, name, READ)):
                choice = record.choices[0]
                stream.add(Tokens(name, 0, 0, choice.tokens, choice.finish or None), "record")

    async def until(self, condition: Callable[[], bool], seconds: float = 150.0) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                await self.poll()
                assert not self.refusals, self.refusals
                await asyncio.sleep(0.005)

    async def finished(self, *names: str) -> None:
        wanted = names or tuple(self.requests)
        await self.until(lambda: all(self.streams[name].finish for name in wanted))

    def count(self, name: str) -> int:
        return len(self.streams[name].tokens)

    async def beat(self, replica: str = "0") -> Heartbeat | None:
        payload = await self.connection.call("HGET", KEYS.replicas, replica)
        return None if payload is None else decode(payload, Heartbeat)

    async def ready(self, *replicas: str) -> None:
        async with asyncio.timeout(120):
            for replica in replicas or ("0",):
                while (beat := await self.beat(replica)) is None or beat.state != "ready":
                    await asyncio.sleep(0.02)

    async def left(self, replica: str = "0") -> tuple[int, int, int]:
        """Entries that wait, entries of the run stream, and holders of requests."""
        holders = await self.connection.call("KEYS", KEYS.holder("*").replace("{", "\\{"))
        submitted = await self.connection.call("XLEN", KEYS.submit)
        return submitted, await self.connection.call("XLEN", KEYS.run(replica)), len(holders)


@pytest.fixture
async def connect(valkey: Any) -> AsyncIterator[Callable[[], Connection]]:
    """`connect()`: another connection to the server."""
    made: list[Connection] = []

    def make() -> Connection:
        made.append(Connection(valkey.url, "test"))
        return made[-1]

    yield make
    for connection in made:
        await connection.close()


@pytest.fixture
def one(connect: Callable[[], Connection]) -> Connection:
    return connect()


@pytest.fixture
def other(connect: Callable[[], Connection]) -> Connection:
    return connect()


@pytest.fixture
async def gateway(valkey: Any) -> AsyncIterator[Gateway]:
    made = Gateway(valkey.url)
    yield made
    await made.connection.close()


@pytest.fixture
def ask() -> Callable[..., Request]:
    return request


@pytest.fixture
def undisturbed(gateway: Gateway) -> Callable[..., Any]:
    """`await undisturbed(*requests)`: what they bring when nothing happens, run before under other names."""

    async def run(*requests: Request) -> dict[str, list[int]]:
        alone = [msgspec.structs.replace(one, id=f"{one.id}-alone") for one in requests]
        await gateway.submit(*alone)
        await gateway.finished(*(one.id for one in alone))
        tokens = {one.id: gateway.streams[f"{one.id}-alone"].tokens for one in requests}
        for one in alone:
            del gateway.requests[one.id]
        return tokens

    return run
