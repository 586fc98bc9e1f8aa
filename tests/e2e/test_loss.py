"""A stack as users start it, of two replicas: Redis is emptied in mid-stream, then the schedulers die."""

import asyncio
import json
import os
import re
import signal
from typing import Any

import aiohttp
import pytest

from pillion.bus import Connection, Keys
from pillion.contracts.entries import Heartbeat, decode
from pillion.ops import sockets
from pillion.ops.rig import Rig
from pillion.ops.stack import redis_url
from tests.e2e.conftest import StartStack

BODIES = [
    {"prompt": "abcdef"[number] * 600, "max_tokens": 1300 + 10 * number, "seed": number, "temperature": 1.0,
     "ignore_eos": True, "stream": True, "return_token_ids": True}
    for number in range(6)
]  # fmt: skip


class Reader:
    """One stream's token ids, as they come."""

    def __init__(self, session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> None:
        self.tokens: list[int] = []
        self.task = asyncio.create_task(self._read(session, url, body))

    async def _read(self, session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> list[int]:
        async with session.post(f"{url}/v1/completions", json=body) as response:
            assert response.status == 200, await response.text()
            while block := await response.content.readuntil(b"\n\n"):
                data = re.search(rb"data: (.*)\n\n", block)
                if data is None or data[1] == b"[DONE]":
                    continue
                event = json.loads(data[1])
                assert "error" not in event, event
                for choice in event["choices"]:
                    self.tokens += choice.get("token_ids") or ()
        return self.tokens


async def progress(readers: list[Reader], tokens: int) -> None:
    """Until each has so many more."""
    wanted = [len(reader.tokens) + tokens for reader in readers]
    async with asyncio.timeout(90):
        while any(len(reader.tokens) < count for reader, count in zip(readers, wanted, strict=True)):
            done = [(len(reader.tokens), reader.task) for reader in readers if reader.task.done()]
            assert not done, f"in mid-stream: {[len(reader.tokens) for reader in readers]}, {done}"
            await asyncio.sleep(0.01)


def schedulers(stack: Rig) -> list[int]:
    lines = [re.match(r" *scheduler-\d (\d+) \| .*lease held", line) for line in stack.lines]
    return [int(line[1]) for line in lines if line]


async def both_ready(connection: Connection) -> bool:
    beats = await connection.call("HVALS", Keys("default").replicas)
    return [decode(beat, Heartbeat).state for beat in beats] == ["ready", "ready"]


@pytest.mark.timeout(170)
async def test_flushall_in_mid_stream_and_two_dead_schedulers_cost_no_token(start_stack: StartStack) -> None:
    # One step a plan: else a replica with few streams is through before the other has begun.
    one_step = ("--multi-step-seconds", "0")
    stack = start_stack("--replicas", "2", "--num-kv-blocks", "800", "--lease-seconds", "1", *one_step)
    url = await asyncio.to_thread(lambda: stack.url)
    connection = Connection(redis_url(sockets.folder(stack.state / "default") / "valkey.sock"), "test")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        async with asyncio.timeout(60):  # with one of them the stack is ready
            while not await both_ready(connection):
                await asyncio.sleep(0.05)
        alone = await asyncio.gather(*(Reader(session, url, body).task for body in BODIES))
        assert [len(tokens) for tokens in alone] == [body["max_tokens"] for body in BODIES]
        runs = [Keys("default").run(replica) for replica in ("0", "1")]
        executors = stack.processes()["executor"]
        for pid in executors:
            os.kill(pid, signal.SIGSTOP)  # what one has not computed sends the next request to the other
        readers = [Reader(session, url, body | {"cache_salt": "again"}) for body in BODIES]
        async with asyncio.timeout(60):
            while not all([await connection.call("XLEN", run) for run in runs]):
                await asyncio.sleep(0.02)
        for pid in executors:
            os.kill(pid, signal.SIGCONT)
        await progress(readers, 10)
        after = len(stack.lines)
        await connection.call("FLUSHALL")
        await asyncio.to_thread(stack.wait_line, r"scheduler-\d \d+ \| .*put back \d+ running", 60, after)
        await asyncio.to_thread(stack.wait_line, r"gateway \d+ \| .*submitted again", 60, after)
        await progress(readers, 20)
        dead = schedulers(stack)
        assert len(dead) == 2
        for pid in dead:
            os.kill(pid, signal.SIGKILL)
        assert [await reader.task for reader in readers] == alone
        assert "of a predecessor" in "\n".join(stack.lines)
        assert set(schedulers(stack)) > set(dead)
        # The next request finds everything in order.
        assert await Reader(session, url, BODIES[0]).task == alone[0]
    await connection.close()
    assert await asyncio.to_thread(stack.end) == 0
