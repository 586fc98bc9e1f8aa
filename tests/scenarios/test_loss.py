"""S39 and S40 at the bus, on a real Valkey: how a loss of data is found out, and what is put back."""

import asyncio
import logging
import time
from typing import Any

import pytest

from pillion.bus import (
    Connection,
    DataLost,
    Group,
    Keys,
    Lease,
    LeaseLost,
    Unwritable,
    Watch,
    append,
    retrying,
)
from pillion.bus.loss import age
from pillion.bus.scripts import DISCARD, HAND_OVER, RESTORE, TAKE_BACK

KEYS = Keys("loss")


class Seen:
    """The generations that a watch told."""

    def __init__(self, connection: Connection) -> None:
        self.names: list[str] = []
        self.watch = Watch(connection, KEYS, self._changed)

    async def _changed(self, generation: str) -> None:
        self.names.append(generation)

    async def count(self, number: int) -> None:
        async with asyncio.timeout(20):
            while len(self.names) < number:
                await asyncio.sleep(0.01)


class TestAWatch:
    async def test_tells_a_loss_once_to_all_alike(self, one: Connection, other: Connection):
        seen = [Seen(connection) for connection in (one, other)]
        runs = [asyncio.create_task(each.watch.run()) for each in seen]
        for each in seen:
            await each.count(1)
        assert 0 <= age(seen[0].names[0], time.time()) < 10
        await one.call("FLUSHALL")
        for each in seen:
            await each.count(2)
        await asyncio.sleep(1.2)  # two more looks
        assert seen[0].names == seen[1].names
        assert len(set(seen[0].names)) == 2
        for run in runs:
            run.cancel()

    async def test_tells_a_restart_since_its_last_moment_may_be_lost(
        self, one: Connection, valkey: Any, caplog: Any
    ):
        caplog.set_level(logging.INFO)
        seen = Seen(one)
        run = asyncio.create_task(seen.watch.run())
        await seen.count(1)
        valkey.kill()
        async with asyncio.timeout(20):
            while "Redis cannot be used" not in caplog.text:
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.7)  # one more look
        await asyncio.to_thread(valkey.start)
        await seen.count(2)
        run.cancel()
        before, after = (name.split(".") for name in seen.names)
        assert before[0] == after[0]  # the log brought the marker back
        assert before[1] != after[1]
        assert caplog.text.count("Redis cannot be used") == 1
        assert caplog.text.count("Redis is back") == 1


class TestALossUnderALease:
    async def test_lets_nothing_be_written_before_it_is_restored(self, one: Connection, other: Connection):
        lease = Lease(one, KEYS, "admission", 0.4)
        await lease.acquire()
        keeping = asyncio.create_task(lease.keep())
        await other.call("FLUSHALL")
        for _ in range(2):
            await asyncio.sleep(0.3)  # time for a renewal
            with pytest.raises(DataLost):
                await DISCARD(other, [lease.key, KEYS.submit], [lease.epoch, "admission", "1-0"])
        await restore(other, lease)
        assert await DISCARD(other, [lease.key, KEYS.submit], [lease.epoch, "admission", "1-0"]) == 0
        assert not keeping.done()
        keeping.cancel()

    async def test_gives_the_lease_to_its_holder_first(self, one: Connection, other: Connection):
        holder, waiting = (Lease(connection, KEYS, "replica:0", 1.0) for connection in (one, other))
        await holder.acquire()
        standby = asyncio.create_task(waiting.acquire())
        await asyncio.sleep(0.3)
        await one.call("FLUSHALL")
        await asyncio.sleep(0.4)
        assert not standby.done()
        await restore(one, holder)
        await asyncio.sleep(0.3)
        assert not standby.done()
        await one.call("FLUSHALL")  # and now its holder is dead
        assert await asyncio.wait_for(standby, 30) > holder.epoch
        with pytest.raises(LeaseLost):
            await restore(one, holder)

    async def test_brings_no_former_holder_back(self, one: Connection, other: Connection):
        """Whoever restores first: the later epoch stays."""
        former, holder = (Lease(connection, KEYS, "replica:0", 0.1) for connection in (one, other))
        await former.acquire()
        await holder.acquire()
        await one.call("FLUSHALL")
        await restore(one, former)
        with pytest.raises(DataLost):
            await DISCARD(other, [holder.key, KEYS.submit], [holder.epoch, "admission", "1-0"])
        await restore(other, holder)
        with pytest.raises(LeaseLost):
            await DISCARD(one, [former.key, KEYS.submit], [former.epoch, "admission", "1-0"])


async def restore(
    connection: Connection, lease: Lease, *entries: Any, records: dict[str, bytes] | None = None
) -> list[str]:
    """Entries are (id, payload, journal payload), held by replica 0; the payload is the request's name."""
    records = records or {}
    keys = [lease.key, lease.lease, KEYS.run("0"), KEYS.journal("0"), *map(KEYS.record, records)]
    keys += [KEYS.holder(payload.decode()) for _, payload, _ in entries]
    args = [lease.epoch, lease.milliseconds, "scheduler", "me", "0", 60, 60, len(records), *records.values()]
    for entry in entries:
        args += entry
    return [each.decode() for each in await RESTORE(connection, keys, args)]


class TestARestoration:
    async def test_makes_a_killed_successor_find_all(self, one: Connection, other: Connection):
        lease = Lease(one, KEYS, "replica:0", 60)
        await lease.acquire()
        held = ("1-1", b"a", b"items of a"), ("1-2", b"b", b"")
        ids = await restore(one, lease, *held, records={"done": b"record"})
        assert "1-1" not in ids
        successor = Group(other, KEYS.run("0"), "scheduler", "successor")
        claimed = await successor.claim_others()
        assert [(entry.id, entry.payload) for entry in claimed] == [(ids[0], b"a"), (ids[1], b"b")]
        journal = await one.call("XRANGE", KEYS.journal("0"), "-", "+")
        assert [row[1][1] for row in journal] == [b"items of a"]
        assert await one.call("MGET", KEYS.holder("a"), KEYS.holder("b")) == [b"0", b"0"]
        assert await one.call("GET", KEYS.record("done")) == b"record"

    async def test_leaves_what_is_there_and_may_be_repeated(self, one: Connection):
        lease = Lease(one, KEYS, "replica:0", 60)
        await lease.acquire()
        group = Group(one, KEYS.run("0"), "scheduler", "me")
        kept = await append(one, KEYS.run("0"), b"kept")
        assert len(await group.read()) == 1
        new = await append(one, KEYS.run("0"), b"new")
        ids = await restore(one, lease, (kept, b"kept", b""), ("1-1", b"gone", b""))
        assert ids[0] == kept
        again = await restore(one, lease, (ids[0], b"kept", b""), (ids[1], b"gone", b""))
        assert again == ids
        assert await one.call("XLEN", KEYS.run("0")) == 3
        assert new in [entry.id for entry in await group.read()]


class TestTakingBack:
    async def test_happens_once_and_by_right_of_the_lease(self, one: Connection, other: Connection):
        dead, admission = (Lease(connection, KEYS, "replica:0", 60) for connection in (one, other))
        await dead.acquire()
        entry = await append(one, KEYS.run("0"), b"x")
        await Group(one, KEYS.run("0"), "scheduler", "dead").read()
        await one.call("SET", KEYS.holder("x"), "0")
        keys = [dead.key, KEYS.run("0"), KEYS.submit, KEYS.record("x"), KEYS.holder("x")]

        def move(lease: Lease) -> Any:
            return TAKE_BACK(other, keys, [lease.epoch, "scheduler", entry, b"again", b"record", 60])

        assert not await admission.try_acquire()
        await one.call("PEXPIRE", dead.lease, 1)
        while not await admission.try_acquire():
            await asyncio.sleep(0.02)
        with pytest.raises(LeaseLost):
            await move(dead)
        answers = await asyncio.gather(*(move(admission) for _ in range(3)))
        assert sum(answer is not None for answer in answers) == 1
        assert [row[1][1] for row in await one.call("XRANGE", KEYS.submit, "-", "+")] == [b"again"]
        assert await one.call("GET", KEYS.record("x")) == b"record"
        assert await one.call("EXISTS", KEYS.holder("x")) == 0
        assert await one.call("XLEN", KEYS.run("0")) == 0


async def test_a_full_redis_is_waited_for_and_said_once(one: Connection, other: Connection, caplog: Any):
    caplog.set_level(logging.INFO)
    lease = Lease(one, KEYS, "admission", 0.8)
    await lease.acquire()
    keeping = asyncio.create_task(lease.keep())
    group = Group(one, KEYS.submit, "admission", "a")
    entry = await append(one, KEYS.submit, b"x")
    await group.read()
    await other.call("CONFIG", "SET", "maxmemory", "1", "maxmemory-policy", "noeviction")
    with pytest.raises(Unwritable, match="maxmemory"):
        await one.call("SET", "key", "value")
    with pytest.raises(Unwritable, match="maxmemory"):
        await one.pipeline(("PING",), ("SET", "key", "value"))
    adding = asyncio.create_task(retrying("add", lambda: append(one, KEYS.submit, b"y")))
    await asyncio.sleep(1.2)  # longer than the lease lives without renewal
    assert not adding.done()
    assert not keeping.done()
    assert await other.call("EXISTS", KEYS.lease("admission")) == 1  # it is kept without memory
    # What frees as much as it takes goes on: a script that has written is not stopped half-way.
    keys = [lease.key, KEYS.submit, KEYS.run("0"), KEYS.holder("x")]
    assert await HAND_OVER(other, keys, [lease.epoch, "admission", entry, b"x", "0", 60])
    assert await other.call("XLEN", KEYS.submit) == 0
    await other.call("CONFIG", "SET", "maxmemory", "0")
    assert await asyncio.wait_for(adding, 30)
    assert await other.call("XLEN", KEYS.submit) == 1
    keeping.cancel()
    assert caplog.text.count("add: Redis takes no writes, trying again") == 1
    assert caplog.text.count("add: Redis is back") == 1
