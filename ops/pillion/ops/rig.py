"""A stack of its own for a tool that tries it hard: started, watched and ended by the tool.

It has a state folder and a port of its own, so that it disturbs no other stack. All that it says goes to a
file, which tells afterwards who died and who raised.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import psutil

from pillion.config import Config, load
from pillion.ops.child import die_with_parent
from pillion.ops.stack import settings_file

ROLES = ("valkey", "executor", "scheduler", "admission", "gateway")
READY_SECONDS = 180.0
END_SECONDS = 90.0

_READY = re.compile(r"^  at +(http://\S+)/v1$")
_METRICS = re.compile(r"^ *(\w+) \d+ \| .*metrics on (http://\S+)$")
_ROLE = re.compile(r"pillion-(valkey)|-m pillion\.ops (\w+)")
_PREFIX = re.compile(r"^ *\w+ \d+ \| ?")  # of a child's lines
_TROUBLE = re.compile(
    r"\| \w+ \d+ ended: (exit code|signal) |Task was destroyed|never awaited|exception was never retrieved"
)


class RigError(RuntimeError):
    """The stack did not start; the message has its last lines."""


class Rig:
    """A `pillion up` under watch. `flags` are those of `pillion up`."""

    def __init__(self, folder: Path, flags: Sequence[str] = ()) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.log = folder / "stack.log"
        self.url = ""
        self.metrics: dict[str, str] = {}  # role to the URL of its metrics
        self._ready = threading.Event()
        self._state = folder / "state"
        command = [
            *(sys.executable, "-m", "pillion.ops", "up", "--port", "0", "--state-dir", str(self._state)),
            *("--metrics-port", "0", *flags),
        ]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PILLION_")}
        self._process = subprocess.Popen(
            command,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=die_with_parent(signal.SIGTERM),  # noqa: PLW1509 - it only calls prctl
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> "Rig":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def wait(self) -> None:
        """Until it is ready. Raises RigError."""
        end = time.monotonic() + READY_SECONDS
        while not self._ready.wait(0.1):
            if self._process.poll() is not None or time.monotonic() > end:
                last = "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])
                raise RigError(f"the stack did not become ready; it said:\n{last}")

    @property
    def config(self) -> Config:
        """What runs, resolved."""
        return load(environ={}, file=settings_file(self._state / "default")).config

    def pids(self) -> dict[str, int]:
        """Role to pid of the children that run."""
        found = {}
        for child in psutil.Process(self._process.pid).children():
            role = _ROLE.search(" ".join(child.cmdline()))
            if role:
                found[role[1] or role[2]] = child.pid
        return found

    def trouble(self) -> list[str]:
        """What it said of deaths, and of errors that nobody expected, each kind once."""
        lines = self.log.read_text(errors="replace").splitlines()
        deaths = [
            "\n".join(lines[number : number + 12])
            for number, line in enumerate(lines)
            if _TROUBLE.search(line)
        ]
        return deaths[:5] + tracebacks(lines)

    def end(self) -> int:
        """Asks it to end, if it runs. Its exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its children die with it
            code = self._process.wait()
        self._reader.join(5)
        return code

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self.log.open("a", buffering=1) as file:
            for line in self._process.stdout:
                file.write(line)
                if match := _READY.match(line.rstrip("\n")):
                    self.url = match[1]
                    self.metrics["gateway"] = f"{self.url}/metrics"
                    self._ready.set()
                elif match := _METRICS.match(line.rstrip("\n")):
                    self.metrics[match[1]] = match[2]


def tracebacks(lines: Sequence[str]) -> list[str]:
    """The tracebacks in a log, of each kind the first; a kind is where it was raised and what."""
    found: dict[tuple[str, str], str] = {}
    bare = [_PREFIX.sub("", line) for line in lines]
    for number, line in enumerate(bare):
        if "Traceback (most recent call last)" not in line:
            continue
        end = number + 1
        while end < len(bare) and bare[end].startswith((" ", "\t")):
            end += 1
        whole = bare[number : end + 1]
        place = next((each for each in reversed(whole) if each.lstrip(" |").startswith("File ")), "")
        found.setdefault((place, whole[-1].partition(":")[0]), "\n".join(bare[max(0, number - 1) : end + 1]))
    return list(found.values())


def died(before: Mapping[str, int], after: Mapping[str, int]) -> list[str]:
    """Who is gone or is another process than before."""
    return [
        f"{role} {pid} is {'gone' if role not in after else f'now {after[role]}'}"
        for role, pid in before.items()
        if after.get(role) != pid
    ]
