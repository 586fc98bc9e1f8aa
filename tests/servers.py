"""Real servers and services for tests, as fixtures: a Valkey, and any of the services as a process."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from pillion.ops.valkey import binary


def free_ports(count: int) -> list[int]:
    """Ports of this machine for servers that will listen on them. They lie below those that Linux gives to
    connections and to who asks for any port, so that no other test takes one until then.
    """
    ports: list[int] = []
    with ExitStack() as held:  # together, so that they differ
        while len(ports) < count:
            port = 10_000 + secrets.randbelow(20_000)
            probe = held.enter_context(socket.socket())
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                ports.append(port)
    return ports


def free_port() -> int:
    return free_ports(1)[0]


class Valkey:
    """A real server on a socket of its own; it can be killed and started again with its data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "valkey.sock"
        self.url = f"unix://{self.socket}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            *(str(binary()), "--port", "0", "--unixsocket", str(self.socket), "--dir", str(self.folder)),
            *("--save", "", "--appendonly", "yes", "--loglevel", "warning"),
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not self._answers():
            assert time.monotonic() < deadline, "Valkey did not start"
            time.sleep(0.01)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(60)

    def _answers(self) -> bool:
        import redis

        try:
            return bool(redis.Redis(unix_socket_path=str(self.socket)).ping())
        except redis.RedisError:
            return False


@pytest.fixture
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    server = Valkey(tmp_path_factory.mktemp("v"))
    server.start()
    yield server
    server.kill()


class Processes:
    """Starts services as real processes and ends them all."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self._environment = {
            k: v for k, v in os.environ.items() if not k.startswith("PILLION_")
        } | environment
        self._all: list[subprocess.Popen[bytes]] = []

    def start(
        self, service: str, *, program: Path | None = None, **settings: object
    ) -> subprocess.Popen[bytes]:
        """`program` is run in place of `-m pillion.ops`, with the service's name as its argument."""
        extra = {f"PILLION_{name.upper()}": str(value) for name, value in settings.items()}
        log = (self.folder / f"{service}.log").open("ab")
        process = subprocess.Popen(
            [sys.executable, *(("-m", "pillion.ops") if program is None else (str(program),)), service],
            env=self._environment | extra,
            stdout=log,
            stderr=log,
        )
        self._all.append(process)
        return process

    def log(self, service: str) -> str:
        return (self.folder / f"{service}.log").read_text()

    def close(self) -> None:
        for process in self._all:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(60)


@pytest.fixture
def processes(valkey: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Processes]]:
    """`processes(model=..., num_kv_blocks=...)`: settings common to all the services that it starts.

    Names in capitals go into the environment as they are.
    """
    made: list[Processes] = []

    def make(**settings: object) -> Processes:
        folder = tmp_path_factory.mktemp("s")
        common = {"redis": valkey.url, "state_dir": folder, "threads": 1, "log_format": "text"} | settings
        environment = {
            name if name.isupper() else f"PILLION_{name.upper()}": str(value)
            for name, value in common.items()
        }
        running = Processes(folder, environment)
        made.append(running)
        return running

    yield make
    for running in made:
        running.close()
