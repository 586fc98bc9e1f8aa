"""A gateway with real HTTP and a real Valkey; the back side of the bus is played by a driver."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from pillion.bus import Connection, Keys, Tail, append
from pillion.config import Config, load
from pillion.contracts.entries import (
    Cancel,
    ChoiceRecord,
    Facts,
    Heartbeat,
    Record,
    Refusal,
    Request,
    StepOutput,
    Tokens,
    decode,
    encode,
)
from pillion.gateway.model import Model, load_model
from pillion.gateway.service import Gateway
from tests.gateway.reader import Reader

FACTS = Facts(
    model="demo",
    fingerprint="fp",
    max_model_len=2048,
    vocab_size=49152,
    end_tokens=(2,),
    block_size=16,
    num_blocks=513,
    max_num_seqs=64,
    max_step_tokens=512,
    tile=16,
    dtype="float32",
    backend="torch",
)


class Driver:
    """Admission, scheduler and executor in one, as far as a gateway can tell."""

    def __init__(self, url: str, stack: str) -> None:
        self.connection = Connection(url, "driver")
        self.blocking = Connection(url, "driver-tail")
        self.cancelling = Connection(url, "driver-cancels")
        self.keys = Keys(stack)
        self.submitted = Tail(self.blocking, self.keys.submit, last="0-0")
        self.cancels = Tail(self.cancelling, self.keys.cancel, last="0-0")
        self.step = 0
        self.beat = Heartbeat("0", 1, "ready", facts=FACTS)
        self._beating: asyncio.Task[None] | None = None

    async def tell(self, **changes: Any) -> None:
        """A heartbeat, now and again and again."""
        values = {name: getattr(self.beat, name) for name in Heartbeat.__struct_fields__}
        self.beat = Heartbeat(**values | changes)
        await append(self.connection, self.keys.beats, encode(self.beat))
        if self._beating is None:
            self._beating = asyncio.create_task(self._repeat())

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(0.3)
            await append(self.connection, self.keys.beats, encode(self.beat))

    def silent(self) -> None:
        assert self._beating is not None
        self._beating.cancel()

    async def request(self) -> Request:
        """The next request that the gateway submits."""
        for _ in range(10):
            entries = await self.submitted.read(count=1, block=1.0)
            if entries:
                return decode(entries[0].payload, Request)
        raise AssertionError("no request was submitted")

    async def cancel(self) -> Cancel:
        for _ in range(10):
            entries = await self.cancels.read(count=1, block=1.0)
            if entries:
                return decode(entries[0].payload, Cancel)
        raise AssertionError("no cancel was sent")

    async def no_cancel(self) -> bool:
        return not await self.cancels.read(count=1, block=0.2)

    def _output(self, items: tuple[Tokens, ...] = (), refusals: tuple[Refusal, ...] = ()) -> bytes:
        self.step += 1
        return encode(StepOutput("0", 1, self.step, items, refusals))

    async def journal(self, *items: Tokens) -> None:
        await append(self.connection, self.keys.journal("0"), self._output(items))

    async def publish(self, gateway: str, *items: Tokens, refusals: tuple[Refusal, ...] = ()) -> None:
        """Journal first, then `out`, as the scheduler does."""
        if items:
            await self.journal(*items)
        await append(self.connection, self.keys.out(gateway), self._output(items, refusals))

    async def record(self, record: Record) -> None:
        await self.connection.call("SET", self.keys.record(record.request), encode(record))

    async def park(self, request: Request, *choices: ChoiceRecord) -> None:
        """The life of the request ends with this record, as the scheduler ends it."""
        await self.record(Record(request.id, choices))
        await self.connection.call("HSET", self.keys.stream(request.id), "parked", request.life)

    async def play(
        self,
        request: Request,
        tokens: list[int],
        choice: int = 0,
        size: int = 1,
        at: int = 0,
        finish: str | None = "length",
        logprobs: Callable[[int], Any] | None = None,
        prompt_logprobs: bytes | None = None,
        **last: Any,
    ) -> None:
        """Publishes `tokens`, from position `at` on, in portions of `size`."""
        for start in range(0, len(tokens), size):
            portion = tuple(tokens[start : start + size])
            end = start + size >= len(tokens)
            item = Tokens(
                request.id,
                choice,
                at + start,
                portion,
                finish if end else None,
                logprobs=tuple(map(logprobs, portion)) if logprobs else None,
                prompt_logprobs=None if at + start else prompt_logprobs,
                **(last if end else {}),
            )
            await self.publish(request.gateway, item)

    async def close(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
        for connection in (self.connection, self.blocking, self.cancelling):
            await connection.close()


@pytest.fixture
def driver_of() -> Callable[[str, str], Driver]:
    """`driver_of(url, stack)`: the back side of a stack whose gateway runs elsewhere."""
    return Driver


class Stack:
    """A running gateway, its driver and an HTTP client."""

    def __init__(self, gateway: Gateway, driver: Driver, session: aiohttp.ClientSession) -> None:
        self.gateway = gateway
        self.driver = driver
        self.session = session
        self.url = f"http://127.0.0.1:{gateway.port}"

    @property
    def tokenizer(self) -> Any:
        assert self.gateway.state.model is not None
        return self.gateway.state.model.tokenizer

    def value(self, metric: str, **labels: str) -> float:
        """Of the gateway's metric; 0 where it was never set."""
        return self.gateway.state.metrics.registry.get_sample_value(metric, labels) or 0.0

    def post(self, path: str, body: Any, **more: Any) -> "asyncio.Task[tuple[int, Any, Any]]":
        """Status, body (decoded where it is JSON) and headers, as a task that runs."""
        return asyncio.create_task(self.fetch("POST", path, json=body, **more))

    async def fetch(self, method: str, path: str, **more: Any) -> tuple[int, Any, Any]:
        async with self.session.request(method, self.url + path, **more) as response:
            text = await response.text()
            if response.content_type == "application/json":
                return response.status, json.loads(text), response.headers
            return response.status, text, response.headers


async def until(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    """Waits until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to hold"
        await asyncio.sleep(0.005)


@pytest.fixture(name="until")
def _until() -> Callable[..., Any]:
    return until


_BLOCK = re.compile(r"(?:: .*\n)*(?:id: ([0-9.x]+-[0-9a-f]{8})\n)?data: (.*)")


def parse_ids(text: str) -> list[tuple[str | None, str]]:
    """Id and data of every event. Comments are left out."""
    blocks = [_BLOCK.fullmatch(block) for block in text.split("\n\n") if block]
    assert all(blocks), text
    return [(block[1], block[2]) for block in blocks if block]


def parse_sse(text: str) -> list[Any]:
    """The data of every event; "[DONE]" as it is."""
    return [data if data == "[DONE]" else json.loads(data) for _, data in parse_ids(text)]


@pytest.fixture(name="parse_sse")
def _parse_sse() -> Callable[[str], list[Any]]:
    return parse_sse


@pytest.fixture(name="parse_ids")
def _parse_ids() -> Callable[[str], list[tuple[str | None, str]]]:
    return parse_ids


@pytest.fixture
def reader() -> Callable[[Stack], Reader]:
    """`reader(stack)`: a client of that gateway that can go away and come back."""
    return lambda stack: Reader(stack, parse_ids)


@pytest.fixture(scope="session")
def demo_model() -> Model:
    """The demo model's text side, loaded once."""
    return load_model(load(environ={}).config)


@asynccontextmanager
async def _running(config: Config, url: str, model: Model | None) -> AsyncIterator[Gateway]:
    gateway = Gateway(config, url)
    actors = gateway.actors()
    if model is not None:
        gateway.state.model = model
        actors.pop("model")
    tasks = [asyncio.create_task(actor(), name=name) for name, actor in actors.items()]
    await gateway.listens.wait()
    try:
        yield gateway
        failed = [task for task in tasks if task.done() and not task.cancelled() and task.exception()]
        assert not failed, [task.exception() for task in failed]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await gateway.close()


@pytest.fixture
async def start(valkey: Any, demo_model: Model) -> AsyncIterator[Callable[..., Any]]:
    """`await start(**settings)` gives a Stack whose replica is ready (unless `ready=False`)."""
    from contextlib import AsyncExitStack

    async with AsyncExitStack() as stack:

        async def make(*, ready: bool = True, model: Model | None = demo_model, **settings: Any) -> Stack:
            config = load({"port": 0, "redis": valkey.url, **settings}, environ={}).config
            gateway = await stack.enter_async_context(_running(config, valkey.url, model))
            driver = Driver(valkey.url, config.stack.stack)
            stack.push_async_callback(driver.close)
            session = await stack.enter_async_context(aiohttp.ClientSession())
            if ready:
                while not gateway.state.verdict().ready:
                    await driver.tell()
                    await asyncio.sleep(0.01)
            return Stack(gateway, driver, session)

        yield make
