"""What a scheduler finds in Redis when it begins: entries of a predecessor, their journal, their records."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pillion.bus import Connection, Group
from pillion.bus.ledger import Ledger, Opened
from pillion.contracts.entries import Spent, Usage, decode
from pillion.scheduler.intake import Intake
from pillion.scheduler.messages import Cancelled
from pillion.scheduler.publisher import GROUP
from tests.bus_client import KEYS, READ, RECORDS, Client, client, leave_behind, request


@pytest.fixture
async def one(valkey: Any) -> AsyncIterator[Client]:
    """Redis, with the journal and the records of what ran before."""
    async with client(valkey.url) as made:
        await leave_behind(made.connection)
        yield made


class Begun:
    """A scheduler's intake, and what it lets in."""

    def __init__(self, connection: Connection) -> None:
        self.done: dict[str, tuple[int, ...]] = {}
        group = Group(connection, KEYS.run("0"), GROUP, "successor")
        self.ledger = Ledger()
        self.intake = Intake(connection, group, KEYS, "0", self.ledger, self._accept, self._refuse, READ)

    async def _accept(self, opened: Opened, cancelled: Cancelled | None) -> None:
        assert cancelled is None
        self.done[opened.request.id] = opened.done().get(0, ())

    async def _refuse(self, refused: Any) -> None:
        raise AssertionError(refused)


async def whole() -> None:
    """Nothing is being put back."""


async def settled(one: Client, owed: int) -> None:
    """What had ended is no longer owed, by nobody, and is not charged again."""
    assert await one.left() == (owed, owed)
    holders = [await one.connection.call("EXISTS", KEYS.holder(name)) for name in RECORDS]
    assert holders == [1, 1, 0]
    ((_, fields),) = await one.connection.call("XRANGE", KEYS.usage, "-", "+")
    assert decode(fields[1], Usage).ended == (Spent("ended"),)


async def test_what_a_predecessor_held_goes_on_from_record_and_journal(one: Client) -> None:
    await one.send(*map(request, ("ran", "parked", "both", "ended", "new")))
    assert len(await Group(one.connection, KEYS.run("0"), GROUP, "dead").read()) == 5
    begun = Begun(one.connection)
    assert await begun.intake.recover() == 4
    assert begun.done == {"ran": (40, 41, 42), "parked": (10, 11), "both": (20, 21, 22), "new": ()}
    await settled(one, owed=4)


async def test_what_nobody_held_goes_on_from_its_record(one: Client) -> None:
    await one.send(*map(request, ("parked", "ended", "new")))
    begun = Begun(one.connection)
    assert await begun.intake.recover() == 0
    reading = asyncio.create_task(begun.intake.run(lambda: "0-0", whole))
    async with asyncio.timeout(20):
        while begun.intake.last == "0-0":
            await asyncio.sleep(0.005)
    reading.cancel()
    assert begun.done == {"parked": (10, 11), "new": ()}
    await settled(one, owed=2)


async def test_an_entry_that_is_put_back_is_kept_though_it_is_read_before_its_id_is_known(
    valkey: Any, one: Client
) -> None:
    """As after a loss: the same request stands in Redis under a new id, which the answer brings later."""
    async with client(valkey.url) as reader:
        await put_back_while_read(Begun(reader.connection), one)


async def put_back_while_read(begun: Begun, one: Client) -> None:
    ask, known = asyncio.Event(), asyncio.Event()

    async def restored() -> None:
        ask.set()
        await known.wait()

    reading = asyncio.create_task(begun.intake.run(lambda: "0-0", restored))
    async with asyncio.timeout(20):
        await one.send(request("new"))
        while "new" not in begun.done:
            await asyncio.sleep(0.005)
        opened = begun.ledger.get("new")
        assert opened is not None
        await one.send(request("new"))  # put back: another id
        await ask.wait()
        entries = await one.connection.call("XRANGE", KEYS.run("0"), "-", "+")
        assert len(entries) == 2
        opened.entry = entries[1][0].decode()
        known.set()
        while begun.intake.last != opened.entry:
            await asyncio.sleep(0.005)
        assert await one.left() == (2, 2)
        await one.send(request("new"))  # and one that nobody put back
        while await one.left() != (2, 2) or begun.intake.last == opened.entry:
            await asyncio.sleep(0.005)
    reading.cancel()
    assert begun.done == {"new": ()}
