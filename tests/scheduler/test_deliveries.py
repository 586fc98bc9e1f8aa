"""How often a run entry was handed out: who kills each scheduler goes to the dead letters."""

import asyncio
import signal
import time
from typing import Any

from pillion.bus import MAX_DELIVERIES
from pillion.contracts.entries import Refusal, decode
from tests.bus_client import KEYS, Client, client, request


async def deliveries(one: Client, wanted: int, within: float = 90.0) -> None:
    """Waits until the one entry was handed out so often."""
    deadline = time.monotonic() + within
    pending: Any = []
    while [row[3] for row in pending] != [wanted]:
        assert time.monotonic() < deadline, f"{pending}, not {wanted} deliveries"
        await asyncio.sleep(0.01)
        if await one.connection.call("EXISTS", KEYS.run("0")) and await one.connection.call(
            "XINFO", "GROUPS", KEYS.run("0")
        ):
            pending = await one.connection.call("XPENDING", KEYS.run("0"), "scheduler", "-", "+", 10)


async def test_who_kills_each_holder_ends_as_a_dead_letter_and_is_told(valkey: Any, processes: Any) -> None:
    stack = processes(lease_seconds=0.3)

    async def killed(one: Client, count: int) -> None:
        scheduler = stack.start("scheduler")
        await deliveries(one, count)
        scheduler.kill()
        assert await asyncio.to_thread(scheduler.wait, 40) == -signal.SIGKILL

    async with client(valkey.url) as one:
        await one.connection.call("HSET", KEYS.stream("a"), "owner", "g", "life", 0, "parked", -1)
        await one.send(request("a"))
        for count in range(1, MAX_DELIVERIES + 1):
            await killed(one, count)
            assert not one.refusals
        stack.start("scheduler")
        await one.until(lambda: bool(one.refusals))
        assert one.refusals == [f"the request was given up after {MAX_DELIVERIES} attempts to run it"]
        assert await one.left() == (0, 0)
        assert await one.connection.call("XLEN", KEYS.dead) == 1
        refused, parked = await one.connection.call("HMGET", KEYS.stream("a"), "refused", "parked")
        assert decode(refused, Refusal).code == "poison_request" and parked == b"-1"
