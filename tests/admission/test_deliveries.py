"""How often an entry was handed out: who kills each holder goes to the dead letters, who was only there when
holders were killed does not."""

import asyncio
import signal
import time
from typing import Any

import pytest

from pillion.bus import MAX_DELIVERIES
from pillion.bus.streams import HARMLESS

GROUP = "admission"


@pytest.fixture
def stack(processes: Any) -> Any:
    return processes(lease_seconds=0.3)


async def deliveries(neighbours: Any, wanted: int, within: float = 90.0) -> None:
    """Waits until the one entry that waits was handed out so often."""
    deadline = time.monotonic() + within
    pending: Any = []
    while [row[3] for row in pending] != [wanted]:
        assert time.monotonic() < deadline, f"{pending}, not {wanted} deliveries"
        await asyncio.sleep(0.01)
        if await neighbours.connection.call("EXISTS", neighbours.keys.submit) and await neighbours.groups():
            pending = await neighbours.connection.call(
                "XPENDING", neighbours.keys.submit, GROUP, "-", "+", 10
            )


async def test_who_kills_each_holder_ends_as_a_dead_letter_and_is_told(
    neighbours: Any, stack: Any, make: Any
) -> None:
    neighbours.replica(make.beat(credit=0, uncomputed=1000))
    request = make.request()
    await neighbours.submit(request)
    for count in range(1, MAX_DELIVERIES + 1):
        admission = stack.start("admission")
        await deliveries(neighbours, count)
        admission.kill()
        assert await asyncio.to_thread(admission.wait, 40) == -signal.SIGKILL
    stack.start("admission")
    (word,) = await neighbours.said(within=90)
    assert [refusal.request for refusal in word.refusals] == [request.id]
    assert word.refusals[0].status == 500
    async with asyncio.timeout(40):  # said first, then set aside
        while await neighbours.connection.call("XLEN", neighbours.keys.dead) != 1:
            await asyncio.sleep(0.01)
    assert await neighbours.pending() == 0


async def test_who_only_waits_while_holders_are_killed_or_ended_is_no_dead_letter(
    neighbours: Any, stack: Any, make: Any
) -> None:
    """More holders than an entry may kill: after some of them one lives on, one is asked to end."""
    neighbours.replica(make.beat(credit=0, uncomputed=1000))
    await neighbours.submit(make.request())
    for count in range(1, MAX_DELIVERIES):
        admission = stack.start("admission")
        await deliveries(neighbours, count)
        admission.kill()
        await asyncio.to_thread(admission.wait, 40)
    survivor = stack.start("admission")
    await deliveries(neighbours, MAX_DELIVERIES)
    await deliveries(neighbours, 1, HARMLESS + 90)  # it has lived with it
    async with asyncio.timeout(40):  # done first, then said
        while "outlived a holder and are not to blame" not in stack.log("admission"):
            await asyncio.sleep(0.02)
    survivor.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(survivor.wait, 40) == 0
    await deliveries(neighbours, 0)
    stack.start("admission")
    await deliveries(neighbours, 1)
    assert await neighbours.refused() == 0
