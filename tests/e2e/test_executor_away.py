"""What clients and probes see while the executor is stopped, and while it is gone."""

import os
import re
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pillion.ops import web
from tests.e2e.conftest import StartStack

BODY = {"prompt": "ab", "max_tokens": 1500, "ignore_eos": True, "stream": True, "return_token_ids": True,
        "temperature": 0}  # fmt: skip


def tokens(events: Iterator[Any]) -> list[int]:
    return [token for event in events for token in event["choices"][0]["token_ids"]]


def readiness(url: str) -> tuple[int, dict[str, Any]]:
    status, answer = web.get(f"{url}/health/ready")
    return status, answer


def test_stopped_it_is_unready_and_goes_on_killed_new_work_is_refused_and_streams_go_on(
    start_stack: StartStack,
) -> None:
    stack = start_stack("--threads", "1", "--hang-timeout", "60", "--step-timeout", "60")
    url = stack.url
    quiet = tokens(web.stream(f"{url}/v1/completions", BODY | {"cache_salt": "0"}))
    assert len(quiet) == 1500

    # S31
    events = web.stream(f"{url}/v1/completions", BODY | {"cache_salt": "1"})
    first = tokens([next(events)])
    executor = stack.pids()["executor"]
    os.kill(executor, signal.SIGSTOP)
    begin = time.monotonic()
    while (found := readiness(url))[0] == 200:
        assert time.monotonic() - begin < 60
        time.sleep(0.05)
    status, answer = found
    assert (status, answer["reason"]) == (503, "stalled")
    (replica,) = answer["replicas"]
    assert (replica["running"], replica["waiting"]) == (1, 0)
    os.kill(executor, signal.SIGCONT)
    assert first + tokens(events) == quiet
    assert readiness(url)[0] == 200
    assert stack.pids()["executor"] == executor

    # S32, S48: beside a text that has to be words of three letters
    words = BODY | {"guided_regex": "([a-z]{3} )+", "max_tokens": 400, "temperature": 1.0, "seed": 3}
    quiet_words = tokens(web.stream(f"{url}/v1/completions", words | {"cache_salt": "0"}))
    events = web.stream(f"{url}/v1/completions", BODY | {"cache_salt": "2"})
    first = tokens([next(events)])
    worded = web.stream(f"{url}/v1/completions", words | {"cache_salt": "1"})
    seen = [next(worded)]
    os.kill(executor, signal.SIGKILL)
    begin = time.monotonic()
    while readiness(url)[0] == 200:
        assert time.monotonic() - begin < 60
    with pytest.raises(web.Refused, match="not ready"):
        next(web.stream(f"{url}/v1/completions", BODY))
    assert first + tokens(events) == quiet
    seen += worded
    assert tokens(iter(seen)) == quiet_words and len(quiet_words) == 400
    assert re.fullmatch("([a-z]{3} ){100}", "".join(event["choices"][0]["text"] for event in seen))
    assert stack.pids()["executor"] != executor
    assert len(tokens(web.stream(f"{url}/v1/completions", BODY))) == 1500
    assert stack.end() == 0
