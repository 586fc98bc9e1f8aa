"""`pillion up`: what it says, what it restarts, how it ends."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from pillion.ops import web
from pillion.ops.processes import ROLES
from pillion.ops.rig import Rig
from pillion.ops.sockets import folder
from tests.e2e.conftest import StartStack


def complete(url: str, tokens: int = 4) -> int:
    """The tokens that a completion brought."""
    body = {"prompt": "ab", "max_tokens": tokens, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}}  # fmt: skip
    return int(list(web.stream(f"{url}/v1/completions", body))[-1]["usage"]["completion_tokens"])


def gone(pid: int, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def test_it_says_what_stands(stack: Rig) -> None:
    assert stack.url
    said = "\n".join(stack.lines)
    assert "Pillion serves demo, ready after" in said
    for pattern in (
        r"computes  \w+, \d+ threads",
        r"backend   (cpu|torch) \(the best that runs \w+ on \w+",
        r"holds     \d+ KV blocks of \d+ tokens: \d+ requests of the full 8192",
    ):
        stack.wait_line(pattern, 20)
    assert set(stack.pids()) == set(ROLES)
    assert {role for role in ROLES if f"{role:>9} {stack.pids()[role]} | " in said} >= {"executor", "gateway"}


def test_a_second_of_the_same_name_is_refused(stack: Rig) -> None:
    assert stack.url
    done = subprocess.run(
        [sys.executable, "-m", "pillion.ops", "up", "--state-dir", str(stack.state)],
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"pillion: the stack 'default' already runs at {stack.url.removesuffix('/v1')} "
        f"(pid {stack.process.pid}); end it, or "
    )
    assert done.stderr.count("\n") == 1
    assert stack.ready


def test_every_killed_child_comes_back_and_the_stack_serves_on(start_stack: StartStack) -> None:
    stack = start_stack()
    url = stack.url
    assert complete(url) == 4
    for role in ROLES:
        old, after = stack.pids()[role], len(stack.lines)
        os.kill(old, signal.SIGKILL)
        stack.wait_line(f"{role} {old} ended: signal SIGKILL; its last lines:", 30, after)
        stack.wait_line(f"starting {role} again", 30, after)
        end = time.monotonic() + 60
        while stack.pids().get(role, old) == old or not stack.ready:
            assert time.monotonic() < end, f"{role} did not come back:\n" + "\n".join(stack.lines[after:])
            time.sleep(0.05)
        assert complete(url) == 4, f"after {role}"
    assert stack.end() == 0


def test_ctrl_c_finishes_what_runs_and_ends_all_in_order(start_stack: StartStack) -> None:
    stack = start_stack()
    assert stack.url
    pids = stack.pids()
    body = {"prompt": "ab", "max_tokens": 400, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}}  # fmt: skip
    events = web.stream(f"{stack.url}/v1/completions", body)
    next(events)
    stack.process.send_signal(signal.SIGINT)
    assert list(events)[-1]["usage"]["completion_tokens"] == 400
    assert stack.ended() == 0
    ends = [line.split()[0] for line in stack.lines if " ends: drained" in line]
    assert ends == ["gateway", "admission", "scheduler", "executor"]
    assert stack.lines[-1].endswith(f"valkey {pids['valkey']} ended: all is on disk")
    assert len(pids) == len(ROLES)
    assert all(gone(pid, 0) for pid in pids.values())
    assert not (stack.state / "default/stack.toml").exists()
    assert not list((stack.state / "default").glob("*.sock"))


def test_a_second_signal_ends_at_once(start_stack: StartStack) -> None:
    stack = start_stack()
    assert stack.url
    pids = stack.pids()
    body = {"prompt": "ab", "max_tokens": 1500, "ignore_eos": True, "stream": True}
    events = web.stream(f"{stack.url}/v1/completions", body)
    next(events)
    begin = time.monotonic()
    stack.process.send_signal(signal.SIGTERM)
    stack.wait_line(
        "ending: running requests are finished first, for up to 30 s; what is left goes on after the next"
        " start; a second signal ends at once",
        20,
    )
    assert stack.end(signal.SIGTERM) == 130
    assert time.monotonic() - begin < 25, "it did not wait for the 30 s"
    assert all(gone(pid, 1) for pid in pids.values())
    events.close()


def test_a_death_while_all_ends_is_told_and_is_no_good_end(start_stack: StartStack) -> None:
    stack = start_stack()
    assert stack.url
    pids = stack.pids()
    admission = pids["admission"]
    body = {"prompt": "ab", "max_tokens": 400, "ignore_eos": True, "stream": True}
    events = web.stream(f"{stack.url}/v1/completions", body)
    next(events)
    os.kill(pids["executor"], signal.SIGSTOP)  # the stream does not end before
    stack.process.send_signal(signal.SIGTERM)
    stack.wait_line("ending: running requests are finished first", 20)
    os.kill(admission, signal.SIGKILL)
    os.kill(pids["executor"], signal.SIGCONT)
    assert len(list(events)) > 1  # who runs needs it no more
    assert stack.ended() == 1
    assert stack.wait_line(f"admission {admission} ended: signal SIGKILL; its last lines:", 20)


def test_children_die_with_a_killed_parent_and_the_stack_can_start_again(start_stack: StartStack) -> None:
    first = start_stack()
    assert first.url
    pids = first.pids()
    assert len(pids) == len(ROLES)
    first.end(signal.SIGKILL)
    assert all(gone(pid) for pid in pids.values())
    again = Rig(first.state, "--model", "./none.gguf")  # as far as the lock and the model
    assert again.wait_line("no model at none.gguf", 20)
    assert again.ended() == 1


def test_a_wrong_setting_of_a_child_ends_the_stack_and_is_the_last_line(
    start_stack: StartStack, tmp_path: Path
) -> None:
    stack = start_stack("--executor", f"unix:{tmp_path}/{'x' * 120}.sock")
    why = f"{tmp_path}/x+.sock is longer than the 107 bytes"
    assert stack.wait_line(f"ERROR   executor ends: {why}", 60)
    assert stack.ended() == 1
    assert re.match(f"pillion: executor: {why}", stack.lines[-1])
    assert not [line for line in stack.lines if re.search("starting executor again|parse_address", line)]


def test_two_stacks_run_side_by_side(stack: Rig, start_stack: StartStack) -> None:
    other = start_stack("--stack", "other", "--served-model-name", "tiny")
    assert other.url != stack.url
    names = [web.get(f"{url}/v1/models")[1]["data"][0]["id"] for url in (stack.url, other.url)]
    assert names == ["demo", "tiny"]
    assert complete(other.url) == 4
    assert other.end() == 0
    assert stack.ready


def test_a_busy_port_is_said_before_the_model_is_read(tmp_path: Path) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        stack = Rig(tmp_path, "--port", str(busy.getsockname()[1]))
        stack.wait_line("is in use; end what uses it", 30)
        assert stack.ended() == 1
    assert len(stack.lines) == 1


def test_a_model_that_the_executor_cannot_run_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"], "hidden_size": 8}')
    stack = Rig(tmp_path / "state", "--model", str(tmp_path))
    assert stack.ended() == 1
    assert stack.lines == [
        f"pillion: {tmp_path}/config.json: architecture BertModel is not supported; supported are "
        "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"
    ]


def test_the_terminal_shows_lines_of_ours_only_and_a_shortened_context(start_stack: StartStack) -> None:
    stack = start_stack("--num-kv-blocks", "3", "--block-size", "16")
    assert stack.url
    assert stack.wait_line(r"context   32 tokens: lowered from \d+, .*; give --num-kv-blocks \d+ or more", 20)
    valkey = stack.pids()["valkey"]
    assert stack.wait_line(r"2 KV blocks of 16 tokens: 1 request of the full 32 tokens", 20)
    sockets = folder(stack.state / "default")
    assert (sockets / "valkey.sock").exists() and sockets != stack.state / "default"  # the path is long
    assert stack.end() == 0
    assert not sockets.exists()
    children = [line.partition(" | ")[2] for line in stack.lines if re.match(r" *[a-z]+ \d+ \| ", line)]
    ours = re.compile(
        rf"\d\d:\d\d:\d\d (INFO|WARNING) |not ready|ending|valkey {valkey} ended: all is on disk$"
    )
    assert len(children) > 10
    assert [line for line in children if not ours.match(line)] == []
    assert "bye bye" in (stack.state / "default/valkey/valkey.log").read_text()


def test_another_host_without_a_key_warns(start_stack: StartStack) -> None:
    stack = start_stack("--host", "0.0.0.0")
    assert stack.url.startswith("http://127.0.0.1:")
    assert stack.wait_line(r"warning   anyone who reaches 0.0.0.0:\d+ can use it; set --api-key KEY", 20)
    assert stack.end() == 0


@pytest.mark.parametrize("role", ["gateway", "admission", "scheduler", "executor"])
def test_health_of_each_service(stack: Rig, role: str) -> None:
    assert stack.url
    command = [
        sys.executable,
        "-m",
        "pillion.ops",
        "health",
        role,
        "--config",
        f"{stack.state}/default/stack.toml",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, done.stdout) == (0, "ready\n"), done.stderr
    elsewhere = ("--stack", "none", "--port", "9", "--executor", "127.0.0.1:9")
    done = subprocess.run([*command, *elsewhere], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"pillion: {role} is not ready: ")
