"""S39, S40, S43 and replicas: a real stack goes on with the exact tokens, whatever Redis or a service does.

The test plays the gateway, so that each condition can be seen to have come about.
"""

import asyncio
import shutil
import signal
from typing import Any

import pytest

from pillion.bus.journal import read_record
from pillion.contracts.entries import Sampling
from pillion.words import counted
from tests.bus_client import READ


@pytest.fixture
def stack(processes: Any, tiny_model: Any) -> Any:
    return processes(
        model=tiny_model("llama3"), served_model_name="tiny", dtype="float32", block_size=16,
        num_kv_blocks=400, lease_seconds=1.0, replica_timeout=1.5,
    )  # fmt: skip


async def ended(process: Any, within: float = 60.0) -> int:
    return await asyncio.to_thread(process.wait, within)


async def said(stack: Any, service: str, *words: str) -> None:
    """Until its log has them."""
    async with asyncio.timeout(60):
        while not all(word in stack.log(service) for word in words):
            await asyncio.sleep(0.02)


async def until(condition: Any, within: float = 60.0) -> Any:
    async with asyncio.timeout(within):
        while not (result := await condition()):
            await asyncio.sleep(0.02)
    return result


class TestFlushall:
    async def test_in_mid_stream_changes_no_token_and_a_kill_after_it_neither(
        self, stack: Any, gateway: Any, ask: Any, undisturbed: Any
    ):
        stack.start("executor")
        first = stack.start("scheduler")
        stack.start("admission")
        await gateway.ready()
        scored = Sampling(seed=5, ignore_eos=True, prompt_logprobs=1)
        wanted = [
            ask("a", output=700), ask("b", 40, output=600), ask("c", 300, output=500, sampling=scored)
        ]  # fmt: skip
        alone = await undisturbed(*wanted)
        await gateway.submit(*wanted)
        await gateway.until(lambda: all(gateway.count(one.id) >= 20 for one in wanted))
        await gateway.connection.call("FLUSHALL")
        lost = [gateway.count(one.id) for one in wanted]
        await gateway.submit_again()
        await gateway.until(
            lambda: all(gateway.count(one.id) > 60 + n for one, n in zip(wanted, lost, strict=True))
        )
        await said(stack, "scheduler", "put back 3 running requests", "Redis lost its data")
        assert all(gateway.streams[one.id].finish is None for one in wanted)
        first.kill()
        await ended(first)
        assert (await gateway.left())[1:] == (3, 3)
        stack.start("scheduler")
        await gateway.finished()
        assert {one.id: gateway.streams[one.id].tokens for one in wanted} == alone
        await said(stack, "scheduler", "goes on with 3 requests of a predecessor")
        assert not gateway.restarted, "what the journal has is not published again from the start"
        told = await read_record(gateway.connection, gateway.keys, "c", READ)
        assert told is not None and len(told.choices[0].prompt_logprobs or b"") == 299 * 16
        assert told.choices[0].prompt_logprobs == gateway.streams["c"].prompt_logprobs
        assert gateway.streams["c"].prompt_logprobs == gateway.streams["c-alone"].prompt_logprobs
        await until(lambda: nothing_left(gateway))

    async def test_runs_nothing_twice_among_replicas(
        self, stack: Any, gateway: Any, ask: Any, undisturbed: Any
    ):
        """Also where admission is another process by then, and one replica puts back late what it holds."""
        await pair(stack, gateway)
        admission = stack.start("admission")
        wanted = [ask(f"r{n}", 20 + n, output=600) for n in range(6)]
        alone = await undisturbed(*wanted)
        await gateway.submit(*wanted)
        await gateway.until(lambda: all(gateway.count(one.id) >= 10 for one in wanted))
        ran = {one.id: gateway.streams[one.id].replicas[0] for one in wanted}
        assert set(ran.values()) == {"0", "1"}
        stack.schedulers["1"].send_signal(signal.SIGSTOP)
        await gateway.connection.call("FLUSHALL")
        admission.kill()
        await ended(admission)
        stack.start("admission")
        await gateway.submit_again()
        await asyncio.sleep(0.7)  # nothing may be forwarded while a replica has not told what it holds
        assert (await gateway.left())[0] > 0
        stack.schedulers["1"].send_signal(signal.SIGCONT)
        await gateway.finished()
        assert {one.id: gateway.streams[one.id].tokens for one in wanted} == alone
        assert {one.id: gateway.streams[one.id].replicas for one in wanted} == {
            name: [replica] for name, replica in ran.items()
        }
        await until(lambda: nothing_left(gateway))


async def pair(stack: Any, gateway: Any, **settings: object) -> None:
    """Two replicas; `stack.executors` and `stack.schedulers` have their processes."""
    stack.executors, stack.schedulers = {}, {}
    for replica in ("0", "1"):
        stack.executors[replica] = stack.start("executor", replica=replica)
        stack.schedulers[replica] = stack.start("scheduler", replica=replica, **settings)
    await gateway.ready("0", "1")


def on(gateway: Any, replica: str) -> set[str]:
    """The requests of which this replica brought the last part, and that have not ended."""
    unfinished = {name for name in gateway.requests if gateway.streams[name].finish is None}
    return {name for name in unfinished if gateway.streams[name].replicas[-1:] == [replica]}


class TestAReplica:
    async def test_that_dies_leaves_its_requests_to_another(
        self, stack: Any, gateway: Any, ask: Any, undisturbed: Any
    ):
        await pair(stack, gateway)
        stack.start("admission")
        wanted = [ask(f"r{n}", 20 + n, output=700) for n in range(4)]
        alone = await undisturbed(*wanted)
        await gateway.submit(*wanted)
        await gateway.until(lambda: all(gateway.count(one.id) >= 20 for one in wanted))
        moved = on(gateway, "1")
        assert moved and moved < set(gateway.requests)
        dead = stack.schedulers["1"]
        dead.kill()
        await ended(dead)
        await gateway.finished()
        assert {one.id: gateway.streams[one.id].tokens for one in wanted} == alone
        replicas = {name: gateway.streams[name].replicas for name in gateway.requests}
        assert replicas == {name: ["1", "0"] if name in moved else ["0"] for name in gateway.requests}
        await said(stack, "admission", f"replica 1 is gone: {len(moved)} of its requests go to others")
        assert not gateway.restarted, "the tokens so far went with the request"
        # It comes back, finds nothing to do, and takes its part of what is new.
        stack.start("scheduler", replica="1")
        await gateway.ready("0", "1")
        assert "of a predecessor" not in stack.log("scheduler")
        await until(lambda: nothing_left(gateway, "1"))
        more = [ask(f"n{n}", output=200) for n in range(4)]
        await gateway.submit(*more)
        await gateway.finished()
        assert {replica for one in more for replica in gateway.streams[one.id].replicas} == {"0", "1"}

    async def test_frozen_until_it_is_given_up_writes_nothing_more(
        self, stack: Any, gateway: Any, ask: Any, undisturbed: Any
    ):
        await pair(stack, gateway)
        stack.start("admission")
        wanted = [ask(f"r{n}", 20 + n, output=1200) for n in range(4)]
        alone = await undisturbed(*wanted)
        await gateway.submit(*wanted)
        await gateway.until(lambda: all(gateway.count(one.id) >= 20 for one in wanted))
        moved = on(gateway, "1")
        assert moved
        stack.schedulers["1"].send_signal(signal.SIGSTOP)
        await gateway.until(lambda: not on(gateway, "1"))
        stack.executors["0"].send_signal(signal.SIGSTOP)  # nothing ends before the heir does
        stack.schedulers["1"].send_signal(signal.SIGCONT)
        assert await ended(stack.schedulers["1"]) == 75
        # The heir has their whole history: it outlives also the records in which they came.
        assert await gateway.connection.call("DEL", *map(gateway.keys.record, moved)) == len(moved)
        assert moved <= on(gateway, "0")
        heir = stack.schedulers["0"]
        heir.kill()
        await ended(heir)
        stack.executors["0"].send_signal(signal.SIGCONT)
        stack.start("scheduler", replica="0")
        await gateway.finished()
        assert {one.id: gateway.streams[one.id].tokens for one in wanted} == alone
        assert all(gateway.streams[name].replicas == ["1", "0"] for name in moved)
        await said(stack, "scheduler", "of a predecessor")

    async def test_that_drains_hands_on_what_its_grace_period_is_too_short_for(
        self, stack: Any, gateway: Any, ask: Any, undisturbed: Any
    ):
        await pair(stack, gateway, drain_timeout=0.4)
        stack.start("admission")
        wanted = [ask(f"r{n}", 20 + n, output=1500) for n in range(2)]
        alone = await undisturbed(*wanted)
        await gateway.submit(*wanted)
        await gateway.until(lambda: all(gateway.count(one.id) >= 20 for one in wanted))
        moved = on(gateway, "1")
        assert moved
        stack.schedulers["1"].terminate()
        await until(lambda: drains(gateway, "1"))
        late = ask("late", output=100)
        await gateway.submit(late)
        assert await ended(stack.schedulers["1"]) == 0
        await gateway.finished()
        assert {one.id: gateway.streams[one.id].tokens for one in wanted} == alone
        assert gateway.streams["late"].replicas == ["0"]
        assert all(gateway.streams[name].replicas == ["1", "0"] for name in moved)
        await said(stack, "scheduler", f"{counted(len(moved), 'request')} left to others")
        await until(lambda: nothing_left(gateway, "1"))

    async def test_that_drains_alone_leaves_its_requests_to_its_successor(
        self, stack: Any, gateway: Any, ask: Any, undisturbed: Any
    ):
        stack.start("executor")
        first = stack.start("scheduler", drain_timeout=0.3)
        stack.start("admission")
        await gateway.ready()
        wanted = ask("a", output=1200)
        alone = await undisturbed(wanted)
        await gateway.submit(wanted)
        await gateway.until(lambda: gateway.count("a") >= 20)
        first.terminate()
        assert await ended(first) == 0
        assert gateway.streams["a"].finish is None
        assert (await gateway.left())[1:] == (1, 1)
        late = ask("late", output=20)
        await gateway.submit(late)
        stack.start("scheduler")
        await gateway.finished()
        assert gateway.streams["a"].tokens == alone["a"]
        await said(stack, "scheduler", "goes on with 1 request of a predecessor")


class TestRedis:
    async def test_killed_frozen_full_and_slow_costs_time_and_no_token(
        self, valkey: Any, stack: Any, gateway: Any, ask: Any, undisturbed: Any
    ):
        stack.start("executor")
        scheduler = stack.start("scheduler", multi_step_seconds=0)  # or they end before all has struck
        admission = stack.start("admission")
        await gateway.ready()
        wanted = [ask("a", output=1800), ask("b", 40, output=1700)]
        alone = await undisturbed(*wanted)
        await gateway.submit(*wanted)

        async def further() -> None:
            before = [gateway.count(one.id) for one in wanted]
            await gateway.until(
                lambda: all(gateway.count(one.id) > 30 + n for one, n in zip(wanted, before, strict=True))
            )
            assert all(gateway.streams[one.id].finish is None for one in wanted)

        await further()
        valkey.kill()
        await asyncio.sleep(1.2)  # longer than a lease lives
        await asyncio.to_thread(valkey.start)
        await said(stack, "scheduler", "Redis is another process now")
        await further()

        valkey.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(2.5)
        late = ask("late", output=20)
        submitting = asyncio.create_task(gateway.submit(late))
        await asyncio.sleep(0.2)
        assert not submitting.done()
        valkey.process.send_signal(signal.SIGCONT)
        await submitting
        await further()

        await gateway.connection.call("CONFIG", "SET", "maxmemory", "1")
        await said(stack, "scheduler", "publish: Redis takes no writes, trying again")
        await gateway.poll()
        counts = [gateway.count(one.id) for one in wanted]
        await asyncio.sleep(1.5)
        await gateway.poll()
        assert [gateway.count(one.id) for one in wanted] == counts
        await gateway.connection.call("CONFIG", "SET", "maxmemory", "0")
        await further()
        assert stack.log("scheduler").count("publish: Redis takes no writes") == 1

        for _ in range(10):
            await gateway.connection.call("CLIENT", "PAUSE", 120, "ALL")
            await asyncio.sleep(0.15)
            await gateway.poll()
        await gateway.finished()
        assert {one.id: gateway.streams[one.id].tokens for one in wanted} == alone
        assert len(gateway.streams["late"].tokens) == 20
        assert [scheduler.poll(), admission.poll()] == [None, None]
        await until(lambda: nothing_left(gateway))

    async def test_killed_with_its_last_words_unwritten_costs_no_token(
        self, valkey: Any, stack: Any, gateway: Any, ask: Any, undisturbed: Any
    ):
        """As on a slow disk: its log is that of a moment before, and nobody has read what came since."""
        for service in ("executor", "scheduler", "admission"):
            stack.start(service)
        await gateway.ready()
        wanted = ask("a", output=900)
        alone = await undisturbed(wanted)
        await gateway.submit(wanted)
        await gateway.until(lambda: gateway.count("a") >= 20)
        log, before = valkey.folder / "appendonlydir", valkey.folder / "before"
        shutil.copytree(log, before)
        steps = (await gateway.beat()).steps

        async def went_on() -> bool:
            return bool((await gateway.beat()).steps > steps + 60)

        await until(went_on)
        valkey.kill()
        shutil.rmtree(log)
        before.rename(log)
        await asyncio.to_thread(valkey.start)
        await gateway.finished()
        assert gateway.gaps and gateway.streams["a"].tokens == alone["a"]
        await said(stack, "scheduler", "Redis is another process now")
        await until(lambda: nothing_left(gateway))


class TestAdmission:
    async def test_killed_is_followed_by_the_one_that_stands_by(
        self, stack: Any, gateway: Any, ask: Any, undisturbed: Any
    ):
        stack.start("executor")
        stack.start("scheduler", credit_seconds=0.02)
        first = stack.start("admission")
        await said(stack, "admission", "admission is active")
        stack.start("admission")
        await gateway.ready()
        wanted = [ask(f"r{n}", 700 + n, output=8) for n in range(20)]  # more than the credit
        await gateway.submit(*wanted)
        await gateway.until(lambda: any(stream.finish for stream in gateway.streams.values()))
        assert (await gateway.left())[0]
        first.kill()
        await ended(first)
        assert (await gateway.left())[0]
        await gateway.submit(*wanted[-3:])  # as a gateway does whose answer was lost
        await gateway.finished()
        assert stack.log("admission").count("admission is active") == 2
        assert "requests of a predecessor" in stack.log("admission")
        assert all(len(stream.tokens) == 8 for stream in gateway.streams.values())
        await until(lambda: nothing_left(gateway))


async def nothing_left(gateway: Any, replica: str = "0") -> bool:
    return bool(await gateway.left(replica) == (0, 0, 0))


async def drains(gateway: Any, replica: str) -> bool:
    """Or has done so: others have taken over what it held, and its word is gone."""
    beat = await gateway.beat(replica)
    return beat is None or beat.state in ("draining", "gone")
