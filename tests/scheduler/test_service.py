"""The scheduler's process with a real Valkey and a real executor; the test plays admission and gateway."""

import asyncio
import os
import signal

import msgspec
import pytest

from pillion.bus import append
from pillion.bus.journal import read_record
from pillion.contracts.entries import (
    Cancel,
    Control,
    Heartbeat,
    Request,
    Spent,
    StepLimits,
    Usage,
    decode,
    encode,
)
from tests.bus_client import KEYS, READ, client, request


@pytest.fixture
def stack(processes, tiny_model):
    running = processes(
        model=tiny_model("llama3"), dtype="float32", block_size=16, num_kv_blocks=64, lease_seconds=1.0
    )
    running.executor = running.start("executor").pid
    return running


async def undisturbed(valkey, stack, *requests: Request) -> dict[str, list[int]]:
    """What the requests bring when nothing happens to them; run under other names, on the same executor."""
    async with client(valkey.url) as probe:
        await probe.ready()
        renamed = [Request(**{**fields(one), "id": one.id + "-alone"}) for one in requests]
        await probe.send(*renamed)
        await probe.until(lambda: all(probe.finish(one.id) for one in renamed))
        return {one.id: probe.tokens(one.id + "-alone") for one in requests}


def fields(one: Request) -> dict[str, object]:
    return {name: getattr(one, name) for name in Request.__struct_fields__}


async def test_tokens_are_journalled_published_and_folded(valkey, stack):
    stack.start("scheduler")
    async with client(valkey.url) as one:
        beat = await one.ready()
        assert beat.facts is not None
        assert beat.facts.num_blocks == 64
        assert beat.facts.backend_reason == "the best that runs float32 on cpu"
        await one.send(request("a"), request("b", length=50, output=7))
        await one.until(lambda: bool(one.finish("a") and one.finish("b")))
        assert len(one.tokens("a")) == 40
        assert len(one.tokens("b")) == 7
        assert one.finish("b") == "length"
        record = await read_record(one.connection, KEYS, "a", READ)
        assert record is not None
        assert list(record.choices[0].tokens) == one.tokens("a")
        assert await one.left() == (0, 0)


async def test_admission_is_told_of_first_tokens_and_of_what_was_used(valkey, stack):
    stack.start("scheduler")
    async with client(valkey.url) as one:
        await one.ready()
        long, both = request("long", length=40, output=9), request("both", length=20, output=1, n=2)
        await one.send(long)
        await one.until(lambda: bool(one.finish("long")))
        again = Request(**{**fields(long), "id": "again"})
        await one.send(again, both)
        await one.until(lambda: bool(one.finish("again") and one.finish("both")))
        rows = await one.connection.call("XRANGE", KEYS.usage, "-", "+")
        told = [decode(row[1][1], Usage) for row in rows]
        firsts = [first for usage in told for first in usage.first]
        assert sorted(name for name, _ in firsts) == ["again", "both", "long"]
        assert all(0 < seconds < 600 for _, seconds in firsts)
        ended = {spent.request: spent for usage in told for spent in usage.ended}
        assert ended["long"] == Spent("long", 40, 9)
        assert ended["again"] == Spent("again", 40 - 32, 9)  # two blocks of 16 were cached
        assert ended["both"] == Spent("both", 2 * (20 - 16), 2)
        assert len(rows) <= 5  # no entry for steps that bring only more tokens


async def test_a_refused_request_is_told_to_admission_too(valkey, stack):
    stack.start("scheduler")
    async with client(valkey.url) as one:
        await one.ready()
        await one.send(request("long", length=5000, output=9))
        await one.until(lambda: bool(one.refusals))
        rows: list = []

        async def read() -> None:
            rows[:] = await one.connection.call("XRANGE", KEYS.usage, "-", "+")

        async with asyncio.timeout(20):
            while not rows:
                await read()
        assert decode(rows[0][1][1], Usage).ended == (Spent("long"),)


async def test_a_killed_scheduler_goes_on_with_the_same_tokens(valkey, stack):
    """In the midst of plans of several steps, as the two run alone."""
    first = stack.start("scheduler", multi_step_seconds=0.1)
    wanted = [request("a", output=480), request("b", length=40, output=460)]
    alone = await undisturbed(valkey, stack, *wanted)
    async with client(valkey.url) as one:
        await one.send(*wanted)
        await one.until(lambda: len(one.tokens("a")) >= 20 and one.together("a") > 1)
        first.kill()
        first.wait(10)
        await one.poll()
        before = len(one.tokens("a"))
        assert before < 480
        assert (await one.left())[1] == 2  # both are still owed
        stack.start("scheduler")
        await one.until(lambda: bool(one.finish("a") and one.finish("b")))
        assert one.tokens("a") == alone["a"]
        assert one.tokens("b") == alone["b"]
        assert {item.request for item in one.items if item.position >= before} >= {"a"}
        assert await one.left() == (0, 0)
        assert "goes on with 2 requests of a predecessor" in stack.log("scheduler")


async def test_a_killed_executor_is_attached_again(valkey, processes, tiny_model):
    stack = processes(model=tiny_model("llama3"), dtype="float32", block_size=16, num_kv_blocks=64)
    executor = stack.start("executor")
    stack.start("scheduler", multi_step_seconds=0.1)
    wanted = request("a", output=400)
    alone = await undisturbed(valkey, stack, wanted)
    async with client(valkey.url) as one:
        await one.send(wanted)
        await one.until(lambda: len(one.tokens("a")) >= 20 and one.together("a") > 1)
        executor.kill()
        executor.wait(10)
        assert len(one.tokens("a")) < 400
        stack.start("executor")
        await one.until(lambda: bool(one.finish("a")))
        assert one.finish("a") == "length", [item for item in one.items if item.finish]
        assert one.tokens("a") == alone["a"]
        assert stack.log("scheduler").count("executor lost") == 1


async def test_a_frozen_scheduler_that_wakes_writes_nothing_more(valkey, stack):
    frozen = stack.start("scheduler")
    wanted = request("a", output=400)
    alone = await undisturbed(valkey, stack, wanted)
    async with client(valkey.url) as one:
        await one.send(wanted)
        await one.until(lambda: len(one.tokens("a")) >= 20)
        frozen.send_signal(signal.SIGSTOP)
        stack.start("scheduler")
        await one.until(lambda: len(one.tokens("a")) >= 200)
        frozen.send_signal(signal.SIGCONT)
        await asyncio.to_thread(frozen.wait, 30)
        assert frozen.returncode == 75  # lease lost
        await one.until(lambda: bool(one.finish("a")))
        assert one.tokens("a") == alone["a"]


async def test_a_cancel_ends_a_running_and_a_waiting_request(valkey, stack):
    stack.start("scheduler")
    async with client(valkey.url) as one:
        await one.ready()
        await one.connection.call("SET", KEYS.tombstone("late"), "1")
        await one.send(request("long", output=900), request("late", output=900))
        await one.until(lambda: len(one.tokens("long")) >= 5 and one.finish("late") == "cancelled")
        assert one.tokens("late") == []
        await append(one.connection, KEYS.cancel, encode(Cancel(request="long")))
        await one.until(lambda: one.finish("long") == "cancelled")
        assert len(one.tokens("long")) < 900
        assert await one.left() == (0, 0)
        async with asyncio.timeout(10):  # every block is back
            while (beat := await one.ready()).kv_usage or beat.running:
                await asyncio.sleep(0.05)


async def test_a_cancel_that_cannot_be_read_is_left_out(valkey, stack):
    process = stack.start("scheduler")
    async with client(valkey.url) as one:
        await one.ready()
        await one.send(request("long", output=900))
        await one.until(lambda: len(one.tokens("long")) >= 5)
        for payload in (b"\xc1", b"", encode(Cancel(request="long"))):
            await append(one.connection, KEYS.cancel, payload)
        await one.until(lambda: one.finish("long") == "cancelled")
        assert process.poll() is None
        assert stack.log("scheduler").count("cannot be read, left out") == 2


async def test_an_administrator_s_words_are_followed_while_streams_go_on(valkey, stack):
    """And none that is for another holder of the lease, or no word at all."""
    stack.start("scheduler")
    async with client(valkey.url) as one:
        epoch = (await one.ready()).epoch

        async def told(**word) -> Heartbeat:
            entry = await append(one.connection, KEYS.control("0"), encode(Control(epoch, **word)))
            async with asyncio.timeout(60):
                while (beat := await one.beat()).controlled != entry:
                    await asyncio.sleep(0.01)
            return beat

        configured = (await one.beat()).step_limit
        await one.send(request("a", length=100, output=150))
        await one.until(lambda: len(one.tokens("a")) >= 5)
        for payload in (b"\xc1", encode(Control(epoch + 1, draining=True, limits=StepLimits(1)))):
            await append(one.connection, KEYS.control("0"), payload)
        beat = await told(flush=True, limits=StepLimits(64, 0.25))
        assert (beat.state, beat.step_limit, beat.step_target) == ("ready", 64, 0.25)
        beat = await told(draining=True)
        assert (beat.state, beat.reason) == ("draining", "an administrator drains it")
        await one.send(request("b"))  # admission had sent it before it knew
        await one.until(lambda: bool(one.finish("a") and one.finish("b")))
        assert (len(one.tokens("a")), len(one.tokens("b"))) == (150, 40)
        beat = await told(draining=False, limits=StepLimits())
        assert (beat.state, beat.step_limit) == ("ready", configured) and configured > 64
        assert "passed over" in stack.log("scheduler") and "cannot be read" in stack.log("scheduler")


async def test_what_a_dead_gateway_asked_for_is_parked(valkey, stack):
    """S6: its word ends, and slot and blocks come back."""
    stack.start("scheduler")
    async with client(valkey.url) as one:
        await one.ready()
        await one.send(
            request("lives", output=900),
            *(request(f"d{n}", output=980, n=8, gateway="dead") for n in range(8)),
        )
        async with asyncio.timeout(60):
            while (await one.ready()).waiting < 30:
                await asyncio.sleep(0.01)
            os.kill(stack.executor, signal.SIGSTOP)  # none of them ends before
            while (await one.left())[0] > 1:
                await asyncio.sleep(0.05)
            os.kill(stack.executor, signal.SIGCONT)
        assert "gateway dead is gone, 8 of its requests are parked" in stack.log("scheduler")
        for index in range(8):
            record = await read_record(one.connection, KEYS, f"d{index}", READ)
            assert record is not None
            assert len(record.choices) == 8
            assert not record.finished
            assert any(len(choice.tokens) < 980 for choice in record.choices)
        await one.until(lambda: one.finish("lives") == "length")


async def test_what_cannot_be_read_or_never_fits_is_set_aside(valkey, stack):
    stack.start("scheduler")
    async with client(valkey.url) as one:
        await one.ready()
        await append(one.connection, KEYS.run("0"), b"\xc1 no entry")
        later = msgspec.msgpack.encode({"id": "later", "gateway": "g", "v": 99})
        await append(one.connection, KEYS.run("0"), later)
        await one.send(request("big", length=1200, output=10), request("fits", output=3))
        await one.until(lambda: len(one.refusals) == 2 and bool(one.finish("fits")))
        assert "could not be read" in one.refusals[0]  # of a later release, whose sender is known
        assert "at most 1008 tokens" in one.refusals[1]  # 63 blocks of 16
        assert await one.left() == (0, 0)
        assert await one.connection.call("XLEN", KEYS.dead) == 2


async def test_redis_commands_per_step_do_not_grow_with_the_sequences(valkey, stack):
    # The lease is rarely renewed meanwhile, and one sequence gets as many plans as many.
    stack.start("scheduler", lease_seconds=60, multi_step_seconds=0)
    async with client(valkey.url) as one:
        await one.ready()

        async def calls() -> int:
            text = (await one.connection.call("INFO", "commandstats")).decode()
            return sum(
                int(line.split("calls=")[1].split(",")[0])
                for line in text.splitlines()
                if line.startswith(("cmdstat_evalsha", "cmdstat_eval:"))
            )

        async def run(count: int) -> float:
            """Scripts a step while `count` sequences decode."""
            names = [f"{count}-{index}" for index in range(count)]
            before, steps = await calls(), (await one.ready()).steps
            await one.send(*(request(name, length=5, output=60) for name in names))
            await one.until(lambda: all(map(one.finish, names)))
            async with asyncio.timeout(20):  # until a heartbeat counts them all
                while (beat := await one.ready()).steps < steps + 60 or beat.running:
                    await asyncio.sleep(0.02)
            return (await calls() - before) / (beat.steps - steps)

        alone, together = await run(1), await run(32)
        assert together < alone * 1.25
        assert alone < 1.5  # one publication, and now and then the lease's renewal


async def test_sigterm_drains(valkey, stack):
    scheduler = stack.start("scheduler")
    async with client(valkey.url) as one:
        await one.ready()
        await one.send(request("a", output=200))
        await one.until(lambda: len(one.tokens("a")) >= 5)
        scheduler.terminate()
        await one.until(lambda: bool(one.finish("a")))
        assert one.finish("a") == "length"
        assert await asyncio.to_thread(scheduler.wait, 30) == 0
        assert await one.connection.call("EXISTS", KEYS.lease("replica:0")) == 0
