"""A stack of its own for a tool or a test that tries it hard: `pillion up`, started, watched and ended by it.

It has a state folder and a port of its own, so that it disturbs no other stack. What it says is kept, and
tells afterwards who died and who raised.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from pillion.config import Config, load
from pillion.ops import web
from pillion.ops.child import die_with_parent
from pillion.ops.processes import roles

READY_SECONDS = 170.0
END_SECONDS = 90.0
UP = (sys.executable, "-m", "pillion.ops", "up")

_READY = r"^  at +(http://\S+)/v1$"
_LINE = re.compile(r"^ *(?P<role>[\w-]+) (?P<pid>\d+) \| ?(?P<text>.*)$")
_METRICS = re.compile(r"^ *[\w-]+ (\d+) \| .*metrics on (http://\S+)$")
_TROUBLE = re.compile(
    r"\| [\w-]+ \d+ ended: (exit code|signal) |Task was destroyed|never awaited|exception was never retrieved"
)


class RigError(RuntimeError):
    """The stack has ended, or does not do what is waited for; the message has its last lines."""


@dataclass(frozen=True, slots=True)
class Line:
    """`role` and `pid` say who wrote it; empty and 0 for what belongs to no process."""

    at: float  # seconds of `time.monotonic`
    role: str
    pid: int
    text: str


class Rig:
    """A `pillion up` under watch; with it all its processes end."""

    def __init__(
        self, state: Path, *flags: str, command: Sequence[str] = UP, log: Path | None = None
    ) -> None:
        """Starts it. `flags` are those of `pillion up`; `log` gets all that it says, with the time."""
        self.state = state
        self.lines: list[str] = []  # as they came, both streams
        self.said: list[Line] = []  # the same, taken apart
        self.scrapes: dict[int, str] = {}  # pid to the URL of its metrics
        self._log = log
        self.process = subprocess.Popen(
            [*command, "--port", "0", "--metrics-port", "0", "--state-dir", str(state), *flags],
            env={name: value for name, value in os.environ.items() if not name.startswith("PILLION_")},
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

    # --- what it says ------------------------------------------------------------------------------

    def _read(self) -> None:
        assert self.process.stdout is not None
        with open(self._log or os.devnull, "w", buffering=1) as log:
            for raw in self.process.stdout:
                line, now = raw.rstrip("\n"), time.monotonic()
                log.write(f"{now:.3f} {line}\n")
                if match := _METRICS.match(line):
                    self.scrapes[int(match[1])] = match[2]
                role, pid, text = match.groups() if (match := _LINE.match(line)) else ("", 0, line)
                self.said.append(Line(now, role, int(pid), text))
                self.lines.append(line)

    def wait_line(self, pattern: str, seconds: float = READY_SECONDS, after: int = 0) -> re.Match[str]:
        """The first line from number `after` on that matches. Raises RigError."""
        end = time.monotonic() + seconds
        seen = after
        while True:
            over = self.process.poll() is not None and not self._reader.is_alive()
            while seen < len(self.lines):
                if match := re.search(pattern, self.lines[seen]):
                    return match
                seen += 1
            if over or time.monotonic() > end:
                raise RigError(f"no line matched {pattern!r}; `pillion up` said:\n{self.tail()}")
            time.sleep(0.02)

    def tail(self, count: int = 60) -> str:
        return "\n".join(self.lines[-count:])

    def trouble(self) -> list[str]:
        """What it said of deaths, and of errors that nobody expected, each kind once."""
        lines = tuple(self.lines)
        deaths = [
            "\n".join(lines[number : number + 12])
            for number, line in enumerate(lines)
            if _TROUBLE.search(line)
        ]
        return deaths[:5] + tracebacks(lines)

    # --- what it is --------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Where it serves; waits for it to be ready. Raises RigError."""
        return self.wait_line(_READY)[1]

    @property
    def ready(self) -> bool:
        try:
            return web.get(f"{self.url}/health/ready", timeout=2.0)[0] == 200
        except web.Unreachable:
            return False

    @property
    def config(self) -> Config:
        """What runs, resolved."""
        return load(environ={}, file=next(self.state.glob("*/stack.toml"))).config

    def processes(self) -> dict[str, list[int]]:
        """The pids of each role's processes that run. Raises RigError where the stack has ended."""
        if self.process.poll() is not None:
            raise RigError(f"`pillion up` has ended with {self.process.returncode}:\n{self.tail()}")
        return roles(self.process.pid)

    def pids(self) -> dict[str, int]:
        """Role to pid, for a stack with one process of each. Raises RigError."""
        return {role: pids[-1] for role, pids in self.processes().items()}

    @property
    def metrics(self) -> dict[str, str]:
        """Role to the URL of its metrics. Raises RigError."""
        urls = {role: self.scrapes[pid] for role, pid in self.pids().items() if pid in self.scrapes}
        return urls | {"gateway": f"{self.url}/metrics"}

    # --- its end -----------------------------------------------------------------------------------

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Asks it to end, if it runs. Its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.ended()

    def ended(self, seconds: float = END_SECONDS) -> int:
        """Waits for its end and kills it where that does not come. Its exit code."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()  # its children die with it
        code = self.process.wait()
        self._reader.join(5)
        return code


def tracebacks(lines: Sequence[str]) -> list[str]:
    """The tracebacks in a log, of each kind the first; a kind is where it was raised and what."""
    found: dict[tuple[str, str], str] = {}
    bare = [match["text"] if (match := _LINE.match(line)) else line for line in lines]
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
