"""Mailboxes by property, the supervisor in real processes."""

import asyncio
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillion.actors import Exit, Full, Mailbox
from pillion.actors.supervisor import Actor


class TestAMailbox:
    @settings(deadline=None)
    @given(
        st.integers(1, 4),
        st.integers(1, 4),
        st.lists(st.sampled_from(["data", "control", "take"]), max_size=60),
    )
    def test_is_bounded_and_gives_control_first_each_in_order(
        self, capacity: int, control_capacity: int, steps: list[str]
    ):
        mailbox: Mailbox[int] = Mailbox(capacity, control_capacity)
        data: deque[int] = deque()
        control: deque[int] = deque()
        for number, step in enumerate(steps):
            if step == "take":
                expected = control.popleft() if control else data.popleft() if data else None
                assert mailbox.take() == expected
                continue
            lane, bound = (data, capacity) if step == "data" else (control, control_capacity)
            put = mailbox.put_nowait if step == "data" else mailbox.put_control
            if len(lane) == bound:
                with pytest.raises(Full):
                    put(number)
            else:
                put(number)
                lane.append(number)
            assert len(mailbox) == len(data) + len(control)

    async def test_makes_writers_wait_for_room_and_loses_nothing(self):
        mailbox: Mailbox[int] = Mailbox(2)
        most = 0

        async def write(start: int) -> None:
            nonlocal most
            for number in range(start, start + 50):
                await mailbox.put(number)
                most = max(most, len(mailbox))

        writers = [asyncio.create_task(write(start)) for start in (0, 100, 200)]
        got = [await mailbox.get() for _ in range(150)]
        await asyncio.gather(*writers)
        assert sorted(got) == [*range(50), *range(100, 150), *range(200, 250)]
        for start in (0, 100, 200):
            assert [n for n in got if start <= n < start + 50] == list(range(start, start + 50))
        assert most == 2

    async def test_control_passes_data_that_waits(self):
        mailbox: Mailbox[str] = Mailbox(1)
        await mailbox.put("data")
        blocked = asyncio.create_task(mailbox.put("more"))
        await asyncio.sleep(0)
        mailbox.put_control("cancel")
        assert [await mailbox.get() for _ in range(3)] == ["cancel", "data", "more"]
        await blocked

    async def test_a_cancelled_reader_takes_nothing_along(self):
        mailbox: Mailbox[int] = Mailbox(4)
        reader = asyncio.create_task(mailbox.get())
        await asyncio.sleep(0)
        reader.cancel()
        mailbox.put_nowait(1)
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert await mailbox.get() == 1

    async def test_a_cancelled_writer_leaves_its_room_to_others(self):
        mailbox: Mailbox[int] = Mailbox(1)
        mailbox.put_nowait(0)
        gone, waits = asyncio.create_task(mailbox.put(1)), asyncio.create_task(mailbox.put(2))
        await asyncio.sleep(0)
        gone.cancel()
        assert [await mailbox.get(), await mailbox.get()] == [0, 2]
        await waits


@given(st.lists(st.floats(0, 30), min_size=1, max_size=40))
def test_restarts_are_given_up_by_their_rate_and_not_their_number(pauses: list[float]):
    actor = Actor("a", lambda: asyncio.sleep(0), max_restarts=3, window=60.0)
    now, granted = 0.0, []
    for pause in pauses:
        now += pause
        recent = [time for time in granted if time >= now - 60.0]
        delay = actor.delay(now)
        assert (delay is None) == (len(recent) == 3)
        if delay is not None:
            assert delay == min(0.1 * 2 ** len(recent), 5.0)
            granted.append(now)


_PROLOGUE = """
import asyncio, sys, time
from pillion.actors import Exit, Stop, Supervisor
from pillion.telemetry import logs
logs.setup("info", "text", "t", sys.stdout)

def say(*words):
    print("SAID", *words, flush=True)

async def forever():
    await asyncio.Event().wait()

async def steady():
    say("up")
    try:
        await forever()
    finally:
        say("cancelled")

supervisor = Supervisor("thing", grace={grace})
"""

Run = Callable[..., "Process"]


class Process:
    """A small service; `said()` gives what its actors said."""

    def __init__(self, source: str, folder: Path, grace: float) -> None:
        script = folder / "service.py"
        epilogue = "\nsys.exit(asyncio.run(supervisor.run()))\n"
        script.write_text(_PROLOGUE.format(grace=grace) + textwrap.dedent(source) + epilogue)
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen([sys.executable, str(script)], stdout=log, stderr=log)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def said(self) -> list[str]:
        return [line[5:] for line in self.log.splitlines() if line.startswith("SAID ")]

    def until(self, word: str, within: float = 60.0) -> None:
        deadline = time.monotonic() + within
        while word not in self.said():
            assert time.monotonic() < deadline, self.log
            assert self.process.poll() is None, self.log
            time.sleep(0.01)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def code(self) -> int:
        return self.process.wait(60)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made: list[Process] = []

    def start(source: str, grace: float = 5.0) -> Process:
        made.append(Process(source, tmp_path, grace))
        return made[-1]

    yield start
    for each in made:
        each.process.kill()
        each.process.wait(60)


class TestASupervisor:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_drains_on_a_signal_hooks_in_order_then_actors(self, run: Run, number: signal.Signals):
        process = run("""
            async def first():
                await asyncio.sleep(0.05)
                say("first")
            async def second():
                say("second")
            supervisor.add("steady", steady)
            supervisor.on_drain(first)
            supervisor.on_drain(second)
        """)
        process.until("up")
        process.send(number)
        assert process.code() == Exit.DRAINED == 0
        assert process.said() == ["up", "first", "second", "cancelled"]
        assert "thing ends: drained" in process.log

    def test_a_second_signal_forces(self, run: Run):
        process = run(
            """
            async def stuck():
                say("draining")
                await forever()
            supervisor.add("steady", steady)
            supervisor.on_drain(stuck)
        """,
            grace=60.0,
        )
        process.until("up")
        process.send(signal.SIGTERM)
        process.until("draining")
        process.send(signal.SIGTERM)
        assert process.code() == Exit.FORCED == 130
        assert process.said() == ["up", "draining", "cancelled"]
        assert "a second signal" in process.log

    def test_the_grace_period_is_the_longest_drain(self, run: Run):
        process = run(
            """
            supervisor.add("steady", steady)
            supervisor.on_drain(forever)
        """,
            grace=0.3,
        )
        process.until("up")
        process.send(signal.SIGTERM)
        assert process.code() == Exit.FORCED
        assert "not drained within 0.3 s" in process.log

    def test_what_outlives_the_grace_period_is_handed_on_where_it_can_be(self, run: Run):
        process = run(
            """
            async def hand_on():
                say("handed on")
            supervisor.add("steady", steady)
            supervisor.on_drain(forever, hand_on)
        """,
            grace=0.3,
        )
        process.until("up")
        process.send(signal.SIGTERM)
        assert process.code() == Exit.DRAINED
        assert process.said() == ["up", "handed on", "cancelled"]
        assert "what had not ended within 0.3 s is handed on" in process.log

    def test_a_failed_drain_is_said_and_no_success(self, run: Run):
        process = run("""
            async def broken():
                raise ValueError("what broke")
            supervisor.add("steady", steady)
            supervisor.on_drain(broken)
        """)
        process.until("up")
        process.send(signal.SIGTERM)
        assert process.code() == Exit.FAILED == 1
        assert "drain failed: ValueError('what broke')" in process.log

    def test_restarts_what_fails_and_leaves_the_rest_alone(self, run: Run):
        process = run("""
            starts = 0
            async def flaky():
                global starts
                starts += 1
                say("start", starts)
                if starts < 4:
                    raise RuntimeError(f"fall {starts}")
                await forever()
            supervisor.add("steady", steady)
            supervisor.add("flaky", flaky)
        """)
        process.until("start 4")
        process.send(signal.SIGTERM)
        assert process.code() == 0
        assert process.said().count("up") == 1
        assert process.log.count("flaky failed, starting again in") == 3
        assert all(f"RuntimeError: fall {n}" in process.log for n in (1, 2, 3))

    def test_gives_up_on_what_keeps_failing(self, run: Run):
        process = run("""
            async def broken():
                say("start")
                raise RuntimeError("what broke")
            supervisor.add("steady", steady)
            supervisor.add("broken", broken, max_restarts=2)
        """)
        assert process.code() == Exit.FAILED
        assert process.said().count("start") == 3
        assert process.said()[-1] == "cancelled"  # the others end in order
        assert "broken kept failing: RuntimeError('what broke')" in process.log

    def test_an_actor_cancelled_from_within_is_one_that_failed(self, run: Run):
        process = run("""
            async def cancelled():
                say("start")
                task = asyncio.create_task(forever())
                task.cancel()
                await task
            supervisor.add("steady", steady)
            supervisor.add("cancelled", cancelled, max_restarts=1)
        """)
        assert process.code() == Exit.FAILED
        assert process.said().count("start") == 2

    @pytest.mark.parametrize("code", [Exit.LEASE_LOST, Exit.USAGE, Exit.ENGINE_DIED])
    def test_ends_with_the_code_that_an_actor_asks_for(self, run: Run, code: Exit):
        process = run(f"""
            async def stops():
                await asyncio.sleep(0.05)
                say("start")
                raise Stop(Exit({int(code)}), "the reason")
            supervisor.add("steady", steady)
            supervisor.add("stops", stops)
        """)
        assert process.code() == code
        assert process.said() == ["up", "start", "cancelled"]  # not started again
        assert "thing ends: the reason" in process.log
        assert "Traceback" not in process.log

    def test_who_returns_has_done_its_work(self, run: Run):
        process = run("""
            async def once():
                say("once")
            supervisor.add("once", once)
            supervisor.add("steady", steady)
        """)
        process.until("up")
        time.sleep(0.3)
        assert process.process.poll() is None
        process.send(signal.SIGTERM)
        assert process.code() == 0
        assert process.said().count("once") == 1

    def test_ends_without_who_does_not_end(self, run: Run):
        process = run("""
            import pillion.actors.supervisor as module
            module.LAST_WORDS = 0.3
            async def stubborn():
                while True:
                    try:
                        await forever()
                    except asyncio.CancelledError:
                        say("no")
            supervisor.add("steady", steady)
            supervisor.add("stubborn", stubborn)
        """)
        process.until("up")
        process.send(signal.SIGTERM)
        assert process.code() == Exit.FORCED
        assert "no" in process.said()
        assert "did not end within 0.3 s of being cancelled: stubborn" in process.log


def test_every_exit_code_is_explained():
    table = (Path(__file__).parents[2] / "docs/recovery.md").read_text()
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == {*Exit}
