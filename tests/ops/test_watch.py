"""A process that was stopped is told from one that works, whatever it is."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any

import psutil

from pillion.bus import Connection, Keys
from pillion.ops import watch
from tests.servers import free_port


def test_silence_is_counted_in_looks_and_an_answer_ends_it() -> None:
    silence = watch.Silence(10.0)
    assert silence.look == 2.5
    assert [silence.heard(1, works=False) for _ in range(5)] == [False, False, False, True, True]
    assert not silence.heard(2, works=False)
    assert not silence.heard(1, works=True)
    assert [silence.heard(1, works=False) for _ in range(4)] == [False, False, False, True]
    silence.forget(1)
    assert not silence.heard(1, works=False)
    assert watch.Silence(600.0).look == watch.LOOK


async def becomes(wanted: bool, ask: Callable[[], Awaitable[bool]], within: float = 40.0) -> None:
    deadline = time.monotonic() + within
    while await ask() is not wanted:
        assert time.monotonic() < deadline, f"never {wanted}"
        await asyncio.sleep(0.05)


async def test_each_service_that_is_stopped_is_silent_and_woken_answers(
    valkey: Any, processes: Any, tiny_model: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(watch, "SECONDS", 1.0)
    port = free_port()
    model, target = tiny_model("smollm2"), f"unix:{tmp_path}/e.sock"
    stack = processes(model=model, executor=target, port=port, lease_seconds=1.0, num_kv_blocks=16)
    connection = Connection(valkey.url, "test")
    url, keys = f"http://127.0.0.1:{port}", Keys("default")
    asked: dict[str, Callable[[], Awaitable[bool]]] = {
        "executor": lambda: watch.grpc(target),
        "gateway": lambda: watch.http(url),
        "scheduler": lambda: watch.leased(connection, keys, "replica:0"),
        "admission": lambda: watch.leased(connection, keys, "admission"),
    }
    running = {name: stack.start(name) for name in asked}
    for word, service in (("listens on", "executor"), ("listens on", "gateway")):
        deadline = time.monotonic() + 60
        while word not in stack.log(service):
            assert time.monotonic() < deadline, stack.log(service)
            await asyncio.sleep(0.05)
    for name, ask in asked.items():
        await becomes(True, ask)
        running[name].send_signal(signal.SIGSTOP)
        await becomes(False, ask)
        assert psutil.Process(running[name].pid).status() == psutil.STATUS_STOPPED
        running[name].send_signal(signal.SIGCONT)
        await becomes(True, ask)
    assert await watch.redis(valkey.socket)
    valkey.process.send_signal(signal.SIGSTOP)
    assert not await watch.redis(valkey.socket)
    assert await asked["admission"]()  # nobody can tell
    valkey.process.send_signal(signal.SIGCONT)
    await connection.close()
    assert all(process.poll() is None for process in running.values())
