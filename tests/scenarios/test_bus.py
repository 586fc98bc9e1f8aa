"""S37, S38, S39, S41 and the fencing of S43 at the bus, on a real Valkey."""

import asyncio
import logging
import random
import time
from typing import Any

import pytest

from pillion.actors import Exit, Stop
from pillion.bus import (
    UNREACHABLE,
    Connection,
    Denied,
    Group,
    Keys,
    Lease,
    LeaseLost,
    Tail,
    append,
    retrying,
)
from pillion.bus.scripts import DISCARD, DISMISS, HAND_OVER, SETTLE

KEYS = Keys("bus")


class TestS37ACancelledCall:
    async def test_never_leaves_the_connection_one_answer_off(self, one: Connection, other: Connection):
        client = await one.call("CLIENT", "ID")
        for number in range(30):
            blocked = asyncio.create_task(one.call("BLPOP", f"list{number}", 5))
            await asyncio.sleep(random.uniform(0.001, 0.005))
            blocked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await blocked
            await other.call("RPUSH", f"list{number}", "late")
            assert await one.call("ECHO", str(number)) == str(number).encode()
            assert await other.call("LLEN", f"list{number}") == 0  # it did run, and its answer went nowhere
        assert await one.call("CLIENT", "ID") == client  # nor did each cancel cost a connection

    async def test_among_many_leaves_each_other_its_own(self, one: Connection, other: Connection):
        await other.call("CLIENT", "PAUSE", 600, "ALL")
        calls = [asyncio.create_task(one.call("ECHO", str(number))) for number in range(60)]
        await asyncio.sleep(0.05)
        for call in calls[::3]:
            call.cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(result, asyncio.CancelledError) for result in results) == 20
        kept = {number: result for number, result in enumerate(results) if number % 3}
        assert kept == {number: str(number).encode() for number in kept}
        assert len(kept) == 40

    async def test_past_its_deadline_costs_the_connection_and_not_the_next_answer(
        self, one: Connection, other: Connection
    ):
        client = await one.call("CLIENT", "ID")
        with pytest.raises(UNREACHABLE, match="no answer from Redis within"):
            await one.call("BLPOP", "list", 5, deadline=0.1)
        await other.call("RPUSH", "list", "late")
        assert await one.call("ECHO", "mine") == b"mine"
        assert await one.call("CLIENT", "ID") != client
        assert await other.call("LLEN", "list") == 1  # nobody waits for it any more

    async def test_loses_no_entry_that_it_was_handed(self, one: Connection, other: Connection):
        group = Group(one, KEYS.submit, "admission", "a")
        await group.ensure()
        reading = asyncio.create_task(group.read())
        await asyncio.sleep(0.05)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        first = await append(other, KEYS.submit, b"first")
        second = await append(other, KEYS.submit, b"second")
        seen = []
        for _ in range(4):
            seen += [(entry.id, entry.payload) for entry in await group.read(block=0.05)]
        assert seen == [(first, b"first"), (second, b"second")]

    async def test_of_a_pipeline_leaves_the_next_one_right(self, one: Connection, other: Connection):
        await other.call("CLIENT", "PAUSE", 500, "ALL")
        cut = asyncio.create_task(one.pipeline(("ECHO", "a"), ("ECHO", "b")))
        await asyncio.sleep(0.03)
        cut.cancel()
        assert await one.pipeline(("ECHO", "c"), ("ECHO", "d")) == [b"c", b"d"]
        assert cut.cancelled()
        assert await one.pipeline(("CLIENT", "ID")) == [await one.call("CLIENT", "ID")]


class TestS38AKilledConsumer:
    async def test_has_its_entries_claimed_by_right_of_the_lease(self, one: Connection, other: Connection):
        dead = Group(one, KEYS.run("0"), "scheduler", "dead")
        await dead.ensure()
        ids = [await append(one, KEYS.run("0"), b"%d" % number) for number in range(10)]
        assert len(await dead.read(count=7)) == 7
        successor = Group(other, KEYS.run("0"), "scheduler", "successor")
        taken: list[Any] = []
        while entries := await successor.claim_others(count=3):
            assert len(entries) <= 3
            taken += entries
        assert [entry.id for entry in taken] == ids[:7]
        assert [entry.payload for entry in taken] == [b"%d" % number for number in range(7)]
        assert {entry.deliveries for entry in taken} == {2}
        assert [entry.id for entry in await successor.read()] == ids[7:]

    async def test_counts_deliveries_over_its_successors(self, one: Connection, connect: Any):
        await append(one, KEYS.submit, b"poison")
        group = Group(one, KEYS.submit, "admission", "0")
        assert [entry.deliveries for entry in await group.read()] == [1]
        for life in range(1, 6):
            entries = await Group(connect(), KEYS.submit, "admission", str(life)).claim_others()
            assert [entry.deliveries for entry in entries] == [life + 1]

    async def test_deleted_entries_are_passed_over(self, one: Connection, other: Connection):
        dead = Group(one, KEYS.submit, "admission", "dead")
        await dead.ensure()
        ids = [await append(one, KEYS.submit, b"%d" % number) for number in range(4)]
        await dead.read()
        await one.call("XDEL", KEYS.submit, *ids[:2])  # pending still, but gone
        successor = Group(other, KEYS.submit, "admission", "successor")
        assert [entry.id for entry in await successor.claim_others(count=2)] == ids[2:]
        assert await successor.claim_others(count=2) == []

    async def test_dead_consumers_are_forgotten_and_those_that_hold_something_are_not(self, connect: Any):
        one = connect()

        async def consumers() -> set[bytes]:
            return {
                facts[b"name"] for facts in await one.call("XINFO", "CONSUMERS", KEYS.submit, "admission")
            }

        for life in range(5):
            holder = Group(connect(), KEYS.submit, "admission", f"life{life}")
            assert await holder.claim_others() == []
            await holder.read(block=0.001)
            assert await consumers() == {b"life%d" % life}
        await append(one, KEYS.submit, b"held")
        (entry,) = await holder.read(block=0.1)
        elsewhere = Group(connect(), KEYS.submit, "other", "idle")
        await elsewhere.read(block=0.1)
        successor = Group(connect(), KEYS.submit, "admission", "next")
        assert [taken.id for taken in await successor.claim_others()] == [entry.id]
        assert await consumers() == {b"life4", b"next"}
        assert await successor.claim_others() == []
        assert await consumers() == {b"next"}
        # Not even where somebody came to hold something after the last look at what is pending.
        assert await DISMISS(one, [KEYS.submit], ["admission", "later"]) == 0
        pending = await one.call("XPENDING", KEYS.submit, "admission")
        assert (pending[0], pending[3][0][0]) == (1, b"next")
        assert (await one.call("XPENDING", KEYS.submit, "other"))[0] == 1


class TestS39ALostStream:
    @pytest.mark.parametrize(
        "loss", [("FLUSHALL",), ("DEL", KEYS.submit), ("XGROUP", "DESTROY", KEYS.submit, "admission")]
    )
    @pytest.mark.parametrize("waiting", [True, False])
    async def test_is_made_again_and_said(
        self, one: Connection, other: Connection, caplog: Any, loss: tuple[str, ...], waiting: bool
    ):
        group = Group(one, KEYS.submit, "admission", "a")
        await append(other, KEYS.submit, b"before")
        assert [entry.payload for entry in await group.read()] == [b"before"]
        seen: list[bytes] = []

        async def follow() -> None:
            async for entries in group.follow():
                seen.extend(entry.payload for entry in entries)

        reader = asyncio.create_task(follow()) if waiting else None
        await asyncio.sleep(0.05)
        await other.call(*loss)
        await append(other, KEYS.submit, b"after")
        reader = reader or asyncio.create_task(follow())
        async with asyncio.timeout(30):
            while b"after" not in seen:
                await asyncio.sleep(0.01)
        reader.cancel()
        assert caplog.text.count("was lost and is made again; Redis lost data") == 1
        assert seen.count(b"after") == 1

    async def test_is_followed_on_by_a_tail(self, one: Connection, other: Connection):
        tail = Tail(one, KEYS.cancel)
        await append(other, KEYS.cancel, b"old")
        await tail.start()
        await append(other, KEYS.cancel, b"seen")
        assert [entry.payload for entry in await tail.read()] == [b"seen"]
        await other.call("FLUSHALL")
        await asyncio.sleep(0.005)  # ids are times in ms
        await append(other, KEYS.cancel, b"after")
        assert [entry.payload for entry in await tail.read()] == [b"after"]


class TestS41AnOldPendingEntry:
    async def test_is_not_delivered_again_by_idle_time(self, one: Connection, other: Connection):
        group = Group(one, KEYS.run("0"), "scheduler", "a")
        entry = await append(one, KEYS.run("0"), b"long")
        await group.read()
        hour = 3_600_000
        await one.call("XCLAIM", KEYS.run("0"), "scheduler", "a", 0, entry, "IDLE", hour, "JUSTID")
        pending = await one.call("XPENDING", KEYS.run("0"), "scheduler", "-", "+", 10)
        assert pending[0][2] >= hour
        assert await group.read(block=0.1) == []
        assert await Group(other, KEYS.run("0"), "scheduler", "b").read(block=0.1) == []
        after = await one.call("XPENDING", KEYS.run("0"), "scheduler", "-", "+", 10)
        assert (after[0][1], after[0][3]) == (b"a", 1)  # whose it is, and how often it was handed out


class TestALease:
    async def test_has_one_holder_at_a_time(self, one: Connection, other: Connection):
        first, second = (Lease(connection, KEYS, "replica:0", 0.8) for connection in (one, other))
        epoch = await first.acquire()
        waiting = asyncio.create_task(second.acquire())
        keeping = asyncio.create_task(first.keep())
        await asyncio.sleep(1.6)  # two lives of the lease
        assert not waiting.done()
        keeping.cancel()
        assert await asyncio.wait_for(waiting, 20) > epoch

    async def test_released_is_free_at_once(self, one: Connection, other: Connection):
        first, second = (Lease(connection, KEYS, "admission", 60) for connection in (one, other))
        epoch = await first.acquire()
        await first.release()
        start = time.monotonic()
        assert await second.acquire() > epoch
        assert time.monotonic() - start < 20

    async def test_epoch_is_time_and_grows_also_when_time_does_not(self, one: Connection):
        before = time.time() * 1000
        lease = Lease(one, KEYS, "admission", 60)
        epoch = await lease.acquire()
        assert before - 2 <= epoch <= time.time() * 1000 + 2
        ahead = epoch + 10**9
        await lease.release()
        await one.call("SET", KEYS.epoch("admission"), ahead)
        assert await lease.acquire() == ahead + 1

    async def test_a_frozen_holder_writes_nothing_more(self, one: Connection, other: Connection):
        frozen, successor = (Lease(connection, KEYS, "admission", 0.2) for connection in (one, other))
        await frozen.acquire()
        group = Group(one, KEYS.submit, "admission", "frozen")
        entry = await append(one, KEYS.submit, b"request")
        await group.read()
        await successor.acquire()  # after 0.2 s without a renewal

        def keys(lease: Lease, destination: str) -> list[str]:
            return [lease.key, KEYS.submit, destination]

        def over(lease: Lease) -> tuple[list[str], list[Any]]:
            arguments = [lease.epoch, "admission", entry, b"request", "0", 60]
            return [*keys(lease, KEYS.run("0")), KEYS.holder("r")], arguments

        old, new = frozen.epoch, successor.epoch
        with pytest.raises(LeaseLost):
            await HAND_OVER(one, *over(frozen))
        with pytest.raises(LeaseLost):
            await SETTLE(one, keys(frozen, KEYS.out("g")), [old, "admission", entry, b"no", 10])
        with pytest.raises(LeaseLost):
            await DISCARD(one, keys(frozen, "")[:2], [old, "admission", entry])
        with pytest.raises(Stop) as stop:
            await frozen.keep()
        assert stop.value.code is Exit.LEASE_LOST
        assert await one.call("EXISTS", KEYS.run("0"), KEYS.out("g")) == 0
        assert await one.call("XLEN", KEYS.submit) == 1
        await frozen.release()  # is not its to release
        assert await one.call("GET", KEYS.lease("admission")) == str(new).encode()
        assert await HAND_OVER(other, *over(successor))

    async def test_that_ran_out_with_nobody_waiting_is_renewed(self, one: Connection):
        lease = Lease(one, KEYS, "admission", 1.0)
        epoch = await lease.acquire()
        await one.call("PEXPIRE", KEYS.lease("admission"), 1)
        async with asyncio.timeout(20):
            while await one.call("EXISTS", KEYS.lease("admission")):
                await asyncio.sleep(0.002)
            keeping = asyncio.create_task(lease.keep())
            while await one.call("GET", KEYS.lease("admission")) != str(epoch).encode():
                await asyncio.sleep(0.02)
        keeping.cancel()


class TestAHandOver:
    async def test_happens_once_whoever_asks_and_however_often(self, connect: Any, one: Connection):
        lease = Lease(one, KEYS, "admission", 60)
        await lease.acquire()
        group = Group(one, KEYS.submit, "admission", "a")
        await group.ensure()
        ids = [await append(one, KEYS.submit, b"%d" % number) for number in range(20)]
        await group.read()
        keys = [lease.key, KEYS.submit, KEYS.run("0")]
        attempts = [
            HAND_OVER(
                connection, [*keys, KEYS.holder(entry)], [lease.epoch, "admission", entry, entry, "0", 60]
            )
            for connection in [connect() for _ in range(4)]
            for entry in ids
        ]
        answers = await asyncio.gather(*attempts)
        assert len(answers) == 80
        assert sum(answer is not None for answer in answers) == 20
        rows = await one.call("XRANGE", KEYS.run("0"), "-", "+")
        assert sorted(row[1][1].decode() for row in rows) == sorted(ids)
        assert await one.call("XLEN", KEYS.submit) == 0
        assert (await one.call("XPENDING", KEYS.submit, "admission"))[0] == 0

    async def test_of_an_entry_that_was_not_read_does_nothing(self, one: Connection):
        lease = Lease(one, KEYS, "admission", 60)
        await lease.acquire()
        await Group(one, KEYS.submit, "admission", "a").ensure()
        entry = await append(one, KEYS.submit, b"unread")
        keys = [lease.key, KEYS.submit, KEYS.run("0"), KEYS.holder("r")]
        assert await HAND_OVER(one, keys, [lease.epoch, "admission", entry, b"unread", "0", 60]) is None
        assert await one.call("XLEN", KEYS.submit) == 1
        assert await one.call("EXISTS", KEYS.run("0")) == 0

    async def test_survives_a_server_that_forgot_its_scripts(self, one: Connection):
        lease = Lease(one, KEYS, "admission", 60)
        await lease.acquire()
        await one.call("SCRIPT", "FLUSH")
        group = Group(one, KEYS.submit, "admission", "a")
        entry = await append(one, KEYS.submit, b"x")
        await group.read()
        keys = [lease.key, KEYS.submit, KEYS.run("0"), KEYS.holder("r")]
        assert await HAND_OVER(one, keys, [lease.epoch, "admission", entry, b"x", "0", 60]) is not None

    async def test_of_what_a_replica_has_already_ends_the_entry(self, one: Connection):
        lease = Lease(one, KEYS, "admission", 60)
        await lease.acquire()
        group = Group(one, KEYS.submit, "admission", "a")
        answers = []
        for replica in ("0", "1"):
            entry = await append(one, KEYS.submit, b"x")
            await group.read()
            keys = [lease.key, KEYS.submit, KEYS.run(replica), KEYS.holder("x")]
            answers.append(
                await HAND_OVER(one, keys, [lease.epoch, "admission", entry, b"x", replica, 60]) is not None
            )
        assert answers == [True, False]
        assert await one.call("EXISTS", KEYS.run("1"), KEYS.submit) == 1  # `submit` is there, and empty
        assert await one.call("XLEN", KEYS.submit) == 0


class TestARestartOfRedis:
    async def test_is_waited_for_and_nothing_is_lost(
        self, valkey: Any, one: Connection, other: Connection, caplog: Any
    ):
        caplog.set_level(logging.INFO)
        group = Group(one, KEYS.submit, "admission", "a")
        await group.ensure()
        seen: list[bytes] = []

        async def follow() -> None:
            async for entries in group.follow():
                seen.extend(entry.payload for entry in entries)

        reader = asyncio.create_task(follow())
        await retrying("add", lambda: append(other, KEYS.submit, b"before"))
        await asyncio.sleep(0.1)
        valkey.kill()
        adding = asyncio.create_task(retrying("add", lambda: append(other, KEYS.submit, b"after")))
        await asyncio.sleep(0.6)
        assert not adding.done()
        commands = one.commands
        assert commands < 20  # it waits longer and longer, and does not hammer
        await asyncio.to_thread(valkey.start)
        await asyncio.wait_for(adding, 30)
        async with asyncio.timeout(30):
            while len(seen) < 2:
                await asyncio.sleep(0.01)
        reader.cancel()
        assert seen == [b"before", b"after"]
        assert caplog.text.count("Redis cannot be reached, trying again") == 2  # once each, not each time
        assert caplog.text.count("Redis is back") == 2

    async def test_is_given_up_on_where_the_caller_has_no_time(self, valkey: Any, one: Connection):
        await one.call("PING")
        valkey.kill()
        start = time.monotonic()
        with pytest.raises(UNREACHABLE):
            await retrying("ping", lambda: one.call("PING"), give_up_after=0.5)
        assert 0.1 < time.monotonic() - start < 20
        valkey.start()

    async def test_a_wrong_password_is_no_restart(self, one: Connection, valkey: Any):
        await one.call("CONFIG", "SET", "requirepass", "right")
        for password in ("?password=wrong", ""):
            connection = Connection(valkey.url + password, "test")
            with pytest.raises(Denied, match="refuses the user or password of --redis"):
                await asyncio.wait_for(retrying("ping", lambda on=connection: on.call("PING")), 30)
            await connection.close()


def test_all_keys_of_a_stack_lie_in_one_slot():
    keys = Keys("a.b-c")
    names = [keys.submit, keys.run("0"), keys.out("g"), keys.cancel, keys.tombstone("r"), keys.beats]
    names += [keys.replicas, keys.journal("0"), keys.record("r"), keys.lease("h"), keys.epoch("h"), keys.dead]
    names += [keys.parking("r"), keys.stream("r"), keys.once("t", "k"), keys.holder("r"), keys.marker]
    assert len(set(names)) == 17
    assert {name[: name.index("}") + 1] for name in names} == {"pillion:{a.b-c}"}
