"""Streams that outlive their gateway and their client, on a real stack with two gateways."""

import asyncio
import json
import re
import signal
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from pillion.bus import Connection, Keys
from tests.servers import free_ports

BIASED = "é€"  # characters of two and of three bytes; the model's tokens are single bytes
TOKENS, LONG = 40, 500
KEY = {"Idempotency-Key": "a key"}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "ab"}], "max_tokens": TOKENS}
TEXT: dict[str, Any] = {"prompt": "ab", "max_tokens": TOKENS}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "a chat": ("chat/completions", CHAT | {"stream_options": {"include_usage": True}}),
    "a chat of three": (
        "chat/completions", CHAT | {"max_tokens": 16, "n": 3, "logprobs": True, "top_logprobs": 2},
    ),
    "a completion that a stop string ends": (
        "completions", TEXT | {"logprobs": 1, "echo": True, "stop": True, "return_token_ids": True},
    ),
    "a completion of three with stop strings": (
        "completions",
        TEXT | {"max_tokens": 16, "n": 3, "stop": True,
                "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ),
}  # fmt: skip

Event = tuple[str | None, bytes]


class Stack:
    """A real stack with two gateways, and clients that leave."""

    def __init__(self, running: Any, session: aiohttp.ClientSession) -> None:
        self.running = running
        self.session = session
        *self.ports, self.metrics = free_ports(3)
        self.executor = running.start("executor")
        running.start("admission")
        running.start("scheduler", metrics_port=self.metrics)
        self.gateways = [running.start("gateway", port=port) for port in self.ports]

    def url(self, gateway: int) -> str:
        return f"http://127.0.0.1:{self.ports[gateway]}"

    async def ready(self) -> None:
        deadline = time.monotonic() + 120
        for gateway in (0, 1):
            while True:
                try:
                    async with self.session.get(self.url(gateway) + "/health/ready") as response:
                        if response.status == 200:
                            break
                except aiohttp.ClientError:
                    pass
                assert time.monotonic() < deadline, self.running.log("gateway")
                await asyncio.sleep(0.05)

    async def metric(self, name: str, port: int | None = None) -> float:
        """The sum over all labels; `name` may go on into them."""
        async with self.session.get(f"http://127.0.0.1:{port or self.metrics}/metrics") as response:
            lines = (await response.text()).splitlines()
        return sum(float(line.split()[-1]) for line in lines if re.match(re.escape(name) + r"[ {,]", line))

    async def several(self) -> bool:
        """Whether some plan was of several steps."""
        return await self.metric("pillion_plan_steps_sum") > await self.metric("pillion_plan_steps_count")

    async def idle(self) -> None:
        """Until no slot and no block is held."""
        async with asyncio.timeout(60):
            for held in ("pillion_sequences", 'pillion_blocks{state="referenced"}'):
                while await self.metric(held):
                    await asyncio.sleep(0.02)

    async def whole(self, gateway: int, body: dict[str, Any], **headers: str) -> Any:
        url = f"{self.url(gateway)}/v1/completions"
        async with self.session.post(url, json=body, headers=headers) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def start(self, path: str, body: dict[str, Any]) -> "Stream":
        return Stream(await self.session.post(f"{self.url(0)}/v1/{path}", json=body | {"stream": True}))

    async def go_on(self, identity: str, last: str) -> "Stream":
        url = f"{self.url(1)}/v1/streams/{identity}"
        return Stream(await self.session.get(url, headers={"Last-Event-ID": last}))


class Stream:
    """One connection's."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        assert response.status == 200, response
        self.response = response
        self.events: list[Event] = []

    @property
    def identity(self) -> str:
        return self.response.headers["x-request-id"]

    @property
    def last(self) -> str:
        """The last event's id."""
        return next(id for id, _ in reversed(self.events) if id is not None)

    async def some(self, count: int) -> None:
        for _ in range(count):
            assert await self.next()

    async def next(self) -> bool:
        """The next event; False at the end."""
        block = await self.response.content.readuntil(b"\n\n")
        if not block:
            return False
        match = re.fullmatch(rb"(?:: .*\n)*(?:id: (\S+)\n)?data: (.*)\n\n", block)
        assert match, block
        self.events.append((match[1].decode() if match[1] else None, match[2]))
        return True

    async def rest(self) -> list[Event]:
        while await self.next():
            pass
        return self.events


def same(events: list[Event]) -> list[tuple[str | None, Any]]:
    """Less what differs between two runs of one request: its id, with the events' checksums, and its time."""
    return [
        (
            id and id.partition("-")[0],
            data if data == b"[DONE]" else json.dumps(json.loads(data) | {"id": "", "created": 0}),
        )
        for id, data in events
    ]


def by_choice(events: list[Event]) -> dict[int, list[Any]]:
    """The choices' events, each one's in order: how several choices interleave is nobody's promise."""
    result: dict[int, list[Any]] = {}
    for _, data in events:
        body = {} if data == b"[DONE]" else json.loads(data)
        parts = body.get("choices") or [{"index": -1}]
        result.setdefault(parts[0]["index"], []).append(
            parts[0] if parts[0]["index"] >= 0 else body.get("usage", data)
        )
    return result


def late(text: str) -> str:
    """The shortest piece of the text's middle that does not come before it."""
    middle = len(text) // 2
    return next(
        text[middle:end] for end in range(middle + 1, len(text)) if text.find(text[middle:end]) == middle
    )


@pytest.fixture
async def stack(processes: Any, tiny_model: Any) -> AsyncIterator[Stack]:
    running = processes(
        model=tiny_model("llama3"), served_model_name="tiny", dtype="float32", block_size=16,
        num_kv_blocks=256, lease_seconds=1.0, multi_step_seconds=0.1,
    )  # fmt: skip
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        stack = Stack(running, session)
        await stack.ready()
        yield stack


async def biased(stack: Stack, body: dict[str, Any], seed: int) -> dict[str, Any]:
    """The body such that its answer is of characters of several bytes, whole and broken ones."""
    async with stack.session.post(stack.url(0) + "/tokenize", json={"prompt": BIASED}) as response:
        tokens = (await response.json())["tokens"]
    bias = dict.fromkeys(map(str, tokens), 100)
    return body | {"logit_bias": bias, "temperature": 2.0, "seed": seed, "ignore_eos": True}


@pytest.mark.timeout(180)
async def test_a_stream_cut_at_every_event_goes_on_elsewhere_to_the_same_bytes(stack: Stack) -> None:
    cuts, salts = 0, iter(range(10**6))
    for path, asked in FORMS.values():
        body = await biased(stack, asked, seed=11)
        if body.pop("stop", None):
            # A string of its own answer, so that it is found after some tokens.
            whole = await (await stack.start(path, body)).rest()
            text = "".join(part["text"] for part in by_choice(whole)[0]).removeprefix("ab")
            body["stop"] = [late(text)]

        def salted(body: dict[str, Any] = body) -> dict[str, Any]:
            return body | {"cache_salt": f"s{next(salts)}"}  # no run finds another's prefix

        golden = await (await stack.start(path, salted())).rest()
        assert golden[-1][1] == b"[DONE]"
        assert len(golden) > TOKENS / 4
        texts = b"".join(data for _, data in golden).decode()
        assert re.search("[^\x00-\x7f\ufffd]", texts), "the condition: characters of several tokens"
        assert "\ufffd" in texts, "the condition: broken ones"
        for at in range(1, len(golden)):
            first = await stack.start(path, salted())
            await first.some(at)
            first.response.close()
            second = await stack.go_on(first.identity, first.last)
            assert second.identity == first.identity
            both = first.events + await second.rest()
            if body.get("n", 1) == 1:
                assert same(both) == same(golden), at
            else:
                assert len(both) == len(golden)
                assert by_choice(both) == by_choice(golden), at
            names = {json.loads(data)["id"] for _, data in both if data != b"[DONE]"}
            assert len(names) == 1
            cuts += 1
    resumed = await stack.metric("pillion_resumed_total", stack.ports[1])
    parked = await stack.metric("pillion_parked_total")
    assert resumed == cuts
    assert parked > cuts / 4, "the condition: streams were cut in mid-decode"
    assert await stack.several(), "the condition: and in the midst of a plan's tokens"
    await stack.idle()


@pytest.mark.timeout(180)
async def test_streams_outlive_their_client_and_their_killed_gateway(stack: Stack, valkey: Any) -> None:
    chat = CHAT | {"max_tokens": LONG, "ignore_eos": True, "seed": 3}
    two = TEXT | {"max_tokens": LONG, "ignore_eos": True, "seed": 4, "n": 2}
    whole = TEXT | {"max_tokens": LONG, "ignore_eos": True, "seed": 5}
    wanted_chat = await (await stack.start("chat/completions", chat)).rest()
    wanted_two = await (await stack.start("completions", two)).rest()
    wanted_whole = await stack.whole(0, whole)

    # A client goes away: slot and blocks are free.
    left = await stack.start("chat/completions", chat)
    await left.some(20)
    left.response.close()
    async with asyncio.timeout(20):  # what is held is told with the heartbeats, and may be told late
        while await stack.metric("pillion_parked_total") < 1:
            await asyncio.sleep(0.02)
    await stack.idle()
    assert await stack.metric("pillion_parked_total") == 1

    # A gateway is killed in mid-decode; nothing goes on while the executor stands still.
    running = await stack.start("chat/completions", chat)
    several = await stack.start("completions", two)
    late = await stack.start("chat/completions", chat)
    waiting = asyncio.create_task(stack.whole(0, whole, **KEY))
    for stream in (running, several, late):
        await stream.some(20)
    while await stack.metric("pillion_requests_running", stack.ports[0]) < 4:
        await asyncio.sleep(0.01)
    stack.executor.send_signal(signal.SIGSTOP)
    owner = stack.gateways[0]
    owner.kill()
    assert await asyncio.to_thread(owner.wait, 60) == -signal.SIGKILL
    for stream in (running, several, late):
        with pytest.raises(aiohttp.ClientError):
            await stream.rest()
        assert 20 <= len(stream.events) < LONG, "the condition: it was cut in mid-decode"
    with pytest.raises(aiohttp.ClientError):
        await waiting

    # Most clients come back at once: they need not wait until the gateway is known to be dead.
    back = [(stream, await stack.go_on(stream.identity, stream.last)) for stream in (running, several)]
    again = asyncio.create_task(stack.whole(1, whole, **KEY))
    # One waits for longer: its request is parked for it.
    connection, keys = Connection(valkey.url, "test"), Keys("default")
    name = await connection.call("HGET", keys.stream(late.identity), "owner")
    await connection.call("DEL", keys.lease(f"gateway:{name.decode()}"))  # as in ten seconds
    await connection.close()
    async with asyncio.timeout(90):
        while await stack.metric("pillion_parked_total") < 5:
            await asyncio.sleep(0.05)
    assert "is gone, 1 of its requests are parked" in stack.running.log("scheduler")
    stack.executor.send_signal(signal.SIGCONT)

    back += [(stream, await stack.go_on(stream.identity, stream.last)) for stream in (late, left)]
    for stream, resumed in back:
        assert resumed.identity == stream.identity
        both = stream.events + await resumed.rest()
        if stream is several:
            assert by_choice(both) == by_choice(wanted_two)
        else:
            assert same(both) == same(wanted_chat)
    answer = await again
    assert (answer["choices"], answer["usage"]) == (wanted_whole["choices"], wanted_whole["usage"])
    stood = {name: await stack.metric(f'pillion_resumed_total{{stood="{name}"}}', stack.ports[1])
             for name in ("running", "parked", "finished")}  # fmt: skip
    assert stood == {"running": 3, "parked": 2, "finished": 0}
    assert await stack.several(), "the condition: tokens came several at a time"
    await stack.idle()
