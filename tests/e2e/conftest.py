"""Whole stacks as users start them: `pillion up`, on a free port and with a state folder of their own."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from pillion.modelfiles import Located
from pillion.ops import web

READY_SECONDS = 120.0
UP = (sys.executable, "-m", "pillion.ops", "up")
ROLES = ("valkey", "executor", "scheduler", "admission", "gateway")


class RunningStack:
    """A `pillion up` and what it said."""

    def __init__(self, state: Path, *arguments: str, command: Sequence[str] = UP) -> None:
        self.state = state
        self.lines: list[str] = []  # both streams, as they came
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PILLION_")}
        self.process = subprocess.Popen(
            [*command, "--port", "0", "--state-dir", str(state), *arguments],
            env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def wait_line(self, pattern: str, seconds: float = READY_SECONDS, after: int = 0) -> re.Match[str]:
        """The first line from number `after` on that matches."""
        end = time.monotonic() + seconds
        seen = after
        while True:
            while seen < len(self.lines):
                if match := re.search(pattern, self.lines[seen]):
                    return match
                seen += 1
            over = self.process.poll() is not None and not self._reader.is_alive()
            if over or time.monotonic() > end:
                said = "\n".join(self.lines[-60:])
                pytest.fail(f"no line matched {pattern!r}; pillion up said:\n{said}")
            time.sleep(0.02)

    @property
    def url(self) -> str:
        """Where it serves; waits for it to be ready."""
        return self.wait_line(r"^  at +(http://\S+)/v1$")[1]

    @property
    def ready(self) -> bool:
        try:
            return web.get(f"{self.url}/health/ready")[0] == 200
        except web.Unreachable:
            return False

    def pids(self) -> dict[str, int]:
        """Role to pid of the children that run."""
        found = {}
        for child in psutil.Process(self.process.pid).children():
            line = " ".join(child.cmdline())
            role = re.search(r"pillion-(valkey)|-m pillion\.ops (\w+)", line)
            if role:
                found[role[1] or role[2]] = child.pid
        return found

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Asks it to end. Its exit code."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self, seconds: float = 60.0) -> int:
        """Waits for its end. Its exit code."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        self._reader.join(5)
        return code


StartStack = Callable[..., RunningStack]


@pytest.fixture(scope="session")
def stack(demo: Located, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """One stack with the demo model for all tests that only ask it things."""
    running = RunningStack(tmp_path_factory.mktemp("stack"))
    running.wait_line("ready after")
    yield running
    assert running.end() == 0


@pytest.fixture
def start_stack(tiny_model: Callable[..., Path], tmp_path: Path) -> Iterator[StartStack]:
    """Starts stacks with a tiny model, for tests that break them."""
    started = []

    def start(*arguments: str) -> RunningStack:
        running = RunningStack(
            tmp_path / f"s{len(started)}", "--model", str(tiny_model("smollm2")), *arguments
        )
        started.append(running)
        return running

    yield start
    for running in started:
        if running.process.poll() is None:
            running.end(signal.SIGKILL)
