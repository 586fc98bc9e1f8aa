"""Admission as a real process on a real Valkey."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any


async def until(condition: Callable[[], Awaitable[Any]], within: float = 10.0) -> Any:
    deadline = time.monotonic() + within
    while not (result := await condition()):
        assert time.monotonic() < deadline, "did not come about"
        await asyncio.sleep(0.02)
    return result


async def test_a_request_goes_to_the_replica(neighbours: Any, processes: Any, make: Any) -> None:
    admission = processes().start("admission")
    neighbours.replica(make.beat(credit=1000))
    request = make.request()
    await neighbours.submit(request)
    ran = await until(neighbours.ran)
    assert ran == [request]
    assert await neighbours.submitted() == 0
    admission.send_signal(signal.SIGTERM)
    assert admission.wait(10) == 0
    assert await neighbours.connection.call("EXISTS", neighbours.keys.lease("admission")) == 0
