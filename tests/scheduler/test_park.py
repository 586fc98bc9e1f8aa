"""Parking and going on: in the core, and in a real replica whose gateway the test plays."""

import asyncio

import msgspec
import pytest

from pillion.bus import append
from pillion.bus.journal import read_record
from pillion.contracts.entries import Cancel, Request, encode
from tests.bus_client import KEYS, READ, Client, client, request

LONG = 450  # output tokens


@pytest.mark.parametrize("after", [0, 1, 2, 5, 12])
def test_a_parked_request_frees_all_it_holds_and_goes_on_as_if_nothing_had_been(make, toy, after):
    """Waiting, half prefilled, decoding."""
    drive = make(options={"max_num_batched_tokens": 32}, executor={"max_step_tokens": 32})
    one = toy.request("x", toy.prompt(80), toy.prompt(9), n=2, max_tokens=20, ignore_eos=True)
    drive.submit(one)
    for _ in range(after):
        drive.advance()
    drive.park("x")
    snapshot = drive.core.snapshot()
    assert snapshot.running == snapshot.waiting == snapshot.referenced_blocks == 0
    assert drive.parked == ["x"]
    assert all(stream.finish is None for stream in drive.streams.values())
    drive.run()
    assert not drive.finished
    drive.take_up("x")
    drive.run()
    drive.check_outputs()


def test_a_park_that_comes_late_does_not_touch_the_next_life(make, toy):
    drive = make()
    drive.submit(toy.request("x", toy.prompt(20), max_tokens=20, ignore_eos=True))
    drive.park("x")
    drive.take_up("x")
    drive.park("x", life=0)
    assert not drive.parked
    drive.run()
    drive.check_outputs()


def test_parking_what_is_gone_is_nothing(make, toy):
    drive = make()
    drive.submit(toy.request("x", toy.prompt(20), max_tokens=2))
    drive.run()
    drive.park("x")
    assert not drive.parked


@pytest.fixture
def stack(processes, tiny_model):
    running = processes(
        model=tiny_model("llama3"), dtype="float32", block_size=16, num_kv_blocks=64, lease_seconds=1.0
    )
    running.start("executor")
    return running


async def head(one: Client, request: Request) -> None:
    """What a gateway writes with the submit."""
    await one.connection.call(
        "HSET", KEYS.stream(request.id), "owner", "g", "life", request.life, "parked", -1
    )


async def parked(one: Client, name: str) -> int:
    return int(await one.connection.call("HGET", KEYS.stream(name), "parked"))


async def park(one: Client, request: Request) -> None:
    await append(one.connection, KEYS.cancel, encode(Cancel(request.id, park=True, life=request.life)))


def next_life(request: Request, **changes: object) -> Request:
    return msgspec.structs.replace(request, life=request.life + 1, **changes)


async def until_parked(one: Client, request: Request) -> None:
    async with asyncio.timeout(30):
        while await parked(one, request.id) != request.life:
            await asyncio.sleep(0.01)


async def test_parked_resumed_killed_and_resumed_again_the_tokens_are_those_of_the_undisturbed_run(
    valkey, stack
):
    scheduler = stack.start("scheduler")
    async with client(valkey.url) as one:
        await one.ready()
        wanted = request("a", output=LONG, n=2)
        await one.send(msgspec.structs.replace(wanted, id="alone"))
        await one.until(lambda: sum(1 for item in one.items if item.finish) == 2)
        alone = [one.tokens("alone", choice) for choice in (0, 1)]

        await head(one, wanted)
        await one.send(wanted)
        await one.until(lambda: len(one.tokens("a")) >= 10)
        await park(one, wanted)
        await until_parked(one, wanted)
        async with asyncio.timeout(30):  # slot and blocks are back
            while (beat := await one.ready()).running or beat.waiting or beat.kv_usage:
                await asyncio.sleep(0.01)
        assert await one.left() == (0, 0)
        record = await read_record(one.connection, KEYS, "a", READ)
        assert record is not None
        assert not record.finished
        await one.poll()
        assert one.finish("a") is None
        assert [list(choice.tokens) for choice in record.choices] == [one.tokens("a", c) for c in (0, 1)]
        assert 10 <= len(record.choices[0].tokens) < LONG

        await one.connection.call("XTRIM", KEYS.journal("0"), "MAXLEN", 0)  # as the replica does in time
        second = next_life(wanted)
        await head(one, second)
        await one.send(second)
        at = len(one.tokens("a"))
        await one.until(lambda: len(one.tokens("a")) >= at + 10)
        scheduler.kill()  # the successor has the first life from the record, the second from the journal
        scheduler.wait(10)
        await one.poll()
        assert len(one.tokens("a")) < LONG
        scheduler = stack.start("scheduler")
        at = len(one.tokens("a"))
        await one.until(lambda: len(one.tokens("a")) >= at + 10)
        await park(one, wanted)  # comes late: it names the first life
        await park(one, second)
        await until_parked(one, second)
        third = next_life(second)
        await head(one, third)
        await one.send(third)
        await one.until(lambda: sum(1 for item in one.items if item.finish and item.request == "a") == 2)
        assert [one.tokens("a", choice) for choice in (0, 1)] == alone
        record = await read_record(one.connection, KEYS, "a", READ)
        assert record is not None
        assert record.finished
        assert [list(choice.tokens) for choice in record.choices] == alone
        assert 0 < await one.connection.call("TTL", KEYS.stream("a")) <= 600


async def test_a_park_is_found_by_who_reads_the_entry_later(valkey, stack):
    async with client(valkey.url) as one:
        early, again = request("early", output=LONG), next_life(request("again", output=3))
        for each in (early, again):
            await head(one, each)
            await one.connection.call("SET", KEYS.parking(each.id), 0)
        await one.send(early, again)
        stack.start("scheduler")
        await one.ready()
        await one.until(lambda: one.finish("again") == "length")  # only its first life was parked
        await until_parked(one, early)
        assert one.tokens("early") == []
        assert await one.left() == (0, 0)


async def test_what_has_ended_is_not_run_again_and_what_a_stop_string_ended_neither(valkey, stack):
    stack.start("scheduler")
    async with client(valkey.url) as one:
        await one.ready()
        await one.send(request("a", output=5))
        await one.until(lambda: bool(one.finish("a")))
        await one.send(next_life(request("a", output=5)))
        await one.send(next_life(request("b", output=LONG, n=2), ended=(0,)))
        await one.until(lambda: any(item.finish for item in one.items if item.request == "b"))
        assert [item.choice for item in one.items if item.request == "b" and item.finish] == [1]
        assert len(one.tokens("a")) == 5  # in all that time
        record = await read_record(one.connection, KEYS, "b", READ)
        assert record is not None
        assert [(len(c.tokens), c.finish) for c in record.choices] == [(0, "cancelled"), (LONG, "length")]
        assert await one.left() == (0, 0)


async def test_a_refused_life_is_one_that_runs_no_more(valkey, stack):
    stack.start("scheduler")
    async with client(valkey.url) as one:
        await one.ready()
        big = next_life(request("big", length=1200, output=10))
        await head(one, big)
        await one.send(big)
        await one.until(lambda: bool(one.refusals))
        assert await parked(one, "big") == 1
