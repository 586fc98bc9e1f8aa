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
        self.request = ""
        self.home = ""  # the replica that has it, once it is at one
        self.task = asyncio.create_task(self._read(session, url, body))

    async def _read(self, session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> list[int]:
        async with session.post(f"{url}/v1/completions", json=body) as response:
            assert response.status == 200, await response.text()
            self.request = response.headers["x-request-id"]
            while block := await response.content.readuntil(b"\n\n"):
                data = re.search(rb"data: (.*)\n\n", block)
                if data is None or data[1] == b"[DONE]":
                    continue
                event = json.loads(data[1])
                assert "error" not in event, event
                for choice in event["choices"]:
                    self.tokens += choice.get("token_ids") or ()
        return self.tokens


async def progress(
    connection: Connection, readers: list[Reader], executors: dict[str, int], tokens: int
) -> None:
    """Until each has so many more; an executor whose streams have them stands still from then on.

    The model is so small that a stream is through in two seconds: where one replica gets no time for so long
    the other's would all have ended.
    """
    keys, wanted = Keys("default"), [len(reader.tokens) + tokens for reader in readers]
    async with asyncio.timeout(90):
        while True:
            for reader in readers:
                if reader.request and not reader.home:
                    reader.home = (await connection.call("GET", keys.holder(reader.request)) or b"").decode()
            short = [r.home for r, count in zip(readers, wanted, strict=True) if len(r.tokens) < count]
            for replica, pid in executors.items():
                runs = replica in short or "" in short
                os.kill(pid, signal.SIGCONT if runs else signal.SIGSTOP)
            done = [(len(reader.tokens), reader.task) for reader in readers if reader.task.done()]
            assert not done, f"in mid-stream: {[len(reader.tokens) for reader in readers]}, {done}"
            if not short:
                return
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
        lines = [line for line in stack.said if re.fullmatch(r"executor-\d", line.role)]
        executors = {line.role.removeprefix("executor-"): line.pid for line in lines}
        assert sorted(executors.values()) == sorted(stack.processes()["executor"])
        for pid in executors.values():
            os.kill(pid, signal.SIGSTOP)  # what one has not computed sends the next request to the other
        readers = [Reader(session, url, body | {"cache_salt": "again"}) for body in BODIES]
        async with asyncio.timeout(60):
            while not all([await connection.call("XLEN", run) for run in runs]):
                await asyncio.sleep(0.02)
        await progress(connection, readers, executors, 10)
        after = len(stack.lines)
        for pid in executors.values():
            os.kill(pid, signal.SIGCONT)
        await connection.call("FLUSHALL")
        await progress(connection, readers, executors, 5)
        await asyncio.to_thread(stack.wait_line, r"scheduler-\d \d+ \| .*put back \d+ running", 60, after)
        await asyncio.to_thread(stack.wait_line, r"gateway \d+ \| .*submitted again", 60, after)
        await progress(connection, readers, executors, 20)
        dead = stack.processes()["scheduler"]
        assert len(dead) == 2
        for pid in dead:
            os.kill(pid, signal.SIGKILL)
        for pid in executors.values():
            os.kill(pid, signal.SIGCONT)
        assert [await reader.task for reader in readers] == alone
        assert "of a predecessor" in "\n".join(stack.lines)
        assert set(schedulers(stack)) > set(dead)
        # The next request finds everything in order.
        assert await Reader(session, url, BODIES[0]).task == alone[0]
    await connection.close()
    assert await asyncio.to_thread(stack.end) == 0
