"""Children: their lines, their deaths, and that they do not outlive their parent."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from pillion.ops.child import Child, exit_words, last_words, role_command


def child(code: str, said: list[str]) -> Child:
    return Child("gateway", [sys.executable, "-c", code], dict(os.environ), said.append)


async def test_lines_of_both_streams_carry_role_and_pid() -> None:
    said: list[str] = []
    one = child("import sys; print('out', flush=True); sys.stderr.write('err\\nno end'); sys.exit(3)", said)
    await one.start()
    assert await one.wait() == 3
    prefix = f"  gateway {one.pid} | "
    assert sorted(said) == sorted([prefix + "out", prefix + "err", prefix + "no end"])
    assert not one.running


async def test_lines_of_json_stay_what_they_are_and_others_become_it() -> None:
    said: list[str] = []
    code = """print('{"level": "info"}'); print('a "word"')"""
    one = Child("gateway", [sys.executable, "-c", code], dict(os.environ), said.append, as_json=True)
    await one.start()
    assert await one.wait() == 0
    assert said[0] == '{"level": "info"}'
    made = json.loads(said[1])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", made.pop("time"))
    assert made == {"level": "info", "service": "gateway", "message": 'a "word"'}


async def test_the_last_lines_are_kept_and_a_restart_clears_them() -> None:
    one = child("for n in range(50): print(n)", [])
    await one.start()
    await one.wait()
    assert list(one.last) == [str(n) for n in range(40, 50)]
    await one.start()
    assert not one.last
    await one.wait()


async def test_a_line_without_end_is_told_in_pieces() -> None:
    said: list[str] = []
    one = child("print('x' * 1_000_000)", said)
    await one.start()
    await one.wait()
    pieces = [line.partition(" | ")[2] for line in said]
    assert len(pieces) > 5
    assert sum(map(len, pieces)) == 1_000_000


async def test_a_grandchild_that_holds_the_pipe_does_not_hold_up_the_end() -> None:
    code = "import subprocess, sys; subprocess.Popen(['sleep', '40']); print('done')"
    said: list[str] = []
    one = child(code, said)
    await one.start()
    async with asyncio.timeout(20):
        assert await one.wait() == 0
    assert said[-1].endswith("| done")


def test_children_die_with_a_killed_parent() -> None:
    parent = subprocess.Popen(
        [
            sys.executable, "-c",
            "import asyncio, os, sys\n"
            "from pillion.ops.child import Child\n"
            "async def main():\n"
            "    child = Child('gateway', ['sleep', '60'], dict(os.environ), print)\n"
            "    await child.start()\n"
            "    print(child.pid, flush=True)\n"
            "    await child.wait()\n"
            "asyncio.run(main())",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert psutil.pid_exists(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + 20
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end, "the child outlives its parent"
        time.sleep(0.01)


def test_command_lines_show_the_role() -> None:
    assert role_command("scheduler", Path("/s/stack.toml"))[1:] == [
        "-m", "pillion.ops", "scheduler", "--config", "/s/stack.toml",
    ]  # fmt: skip


def test_exit_codes_in_words() -> None:
    assert exit_words(-signal.SIGKILL) == "signal SIGKILL"
    assert exit_words(1) == "exit code 1"


@pytest.mark.parametrize(
    "lines",
    [
        ["09:20:42 INFO    looking", "09:20:43 ERROR   executor ends: no a: b"],
        ["09:20:43 ERROR   scheduler 0 ends: no a: b", "Exception ignored in"],
        ['{"level":"error","message":"executor ends: no a: b"}'],
        ["pillion: no a: b"],
        ["no a: b"],
    ],
)
def test_last_words_are_the_reason_alone(lines: list[str]) -> None:
    assert last_words(lines) == "no a: b"


def test_nobody_dies_without_a_word() -> None:
    assert last_words([]) == "it said nothing"


async def test_the_last_lines_of_one_that_writes_a_file_are_the_files(tmp_path: Path) -> None:
    log, said = tmp_path / "log", []
    code = f"for n in range(50): print(n, file=open({str(log)!r}, 'a'))"
    one = Child("valkey", [sys.executable, "-c", code], dict(os.environ), said.append, log=log)
    await one.start()
    await one.wait()
    assert (said, list(one.last)) == ([], [str(n) for n in range(40, 50)])
