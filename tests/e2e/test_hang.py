"""`pillion up` replaces a child that is there and does not work."""

import os
import signal
import time

import psutil

from pillion.ops import web
from tests.e2e.conftest import StartStack


def test_a_child_that_hangs_is_killed_and_started_again(start_stack: StartStack) -> None:
    stack = start_stack("--hang-timeout", "6", "--threads", "1")
    url = stack.url
    body = {"prompt": "ab", "max_tokens": 1200, "ignore_eos": True, "stream": True, "return_token_ids": True,
            "temperature": 0, "cache_salt": "a"}  # fmt: skip

    def tokens(events: object) -> list[int]:
        return [token for event in events for token in event["choices"][0]["token_ids"]]  # type: ignore[attr-defined]

    quiet = tokens(web.stream(f"{url}/v1/completions", body))
    assert len(quiet) == 1200
    events = web.stream(f"{url}/v1/completions", body | {"cache_salt": "b"})
    first = tokens([next(events)])
    old = stack.pids()["executor"]
    os.kill(old, signal.SIGSTOP)
    stack.wait_line(f"executor {old} says nothing any more and is killed", 60)
    assert first + tokens(events) == quiet
    new = stack.pids()["executor"]
    assert new != old and not psutil.pid_exists(old)
    end = time.monotonic() + 60
    while not stack.ready:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert {role: pid for role, pid in stack.pids().items() if role != "executor"}.keys() == {
        "valkey", "scheduler", "admission", "gateway",
    }  # fmt: skip
    assert sum("says nothing any more" in line for line in stack.lines) == 1
    assert stack.end() == 0
