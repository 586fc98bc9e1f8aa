"""One child process: started so that it dies with its parent, its lines prefixed with its role and pid."""

import asyncio
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LONGEST_LINE = 1 << 16  # bytes; what is longer is shown in pieces
_KEPT_LINES = 10
_LAST_LINES_SECONDS = 0.5
_BEFORE = re.compile(r"^(\d\d:\d\d:\d\d [A-Z]+ +)?(pillion: |\w+( \S+)? ends: )?")

_COLOURS = {"gateway": 36, "admission": 35, "scheduler": 33, "executor": 32, "valkey": 34}


class Child:
    """A role's process. `say` gets each of its lines, prefixed; the last ones are kept for when it dies.

    `log` is a file that it writes to instead; only its last lines are read, when it has died. `as_json`: its
    lines are JSON and are not prefixed; what is none is made so.
    """

    def __init__(
        self,
        role: str,
        command: Sequence[str],
        environ: dict[str, str],
        say: Callable[[str], None],
        colour: bool = False,
        death_signal: signal.Signals = signal.SIGKILL,
        inherit: Sequence[int] = (),
        log: Path | None = None,
        as_json: bool = False,
    ) -> None:
        self.role = role
        self.command = command
        self.environ = environ
        self.say = say
        self.colour = colour
        self.death_signal = death_signal
        self.inherit = inherit
        self.log = log
        self.as_json = as_json
        self.last: deque[str] = deque(maxlen=_KEPT_LINES)
        self._transport: asyncio.SubprocessTransport | None = None
        self._life: _Life | None = None

    @property
    def pid(self) -> int:
        return self._transport.get_pid() if self._transport else 0

    @property
    def running(self) -> bool:
        return self._transport is not None and self._transport.get_returncode() is None

    async def start(self) -> None:
        """Raises OSError where the program cannot be run."""
        self.last.clear()
        _, self._life = await asyncio.get_running_loop().subprocess_exec(
            lambda: _Life(self._begin, self._line),
            *self.command,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a terminal's Ctrl-C reaches the parent only, which ends all in order
            pass_fds=self.inherit,
            preexec_fn=die_with_parent(self.death_signal),
        )

    async def wait(self) -> int:
        """Its exit code, negative for a signal, when it has ended and all its lines were told."""
        assert self._transport is not None and self._life is not None
        await self._life.exited.wait()
        # A grandchild may hold the pipes open; its lines are not waited for.
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_LINES_SECONDS):
                await self._life.silent.wait()
        if self.log is not None:
            self.last.extend(_tail(self.log))
        code = self._transport.get_returncode()
        self._transport.close()
        assert code is not None
        return code

    def send(self, number: signal.Signals) -> None:
        if self._transport is not None and self.running:
            with suppress(ProcessLookupError):
                self._transport.send_signal(number)

    def _begin(self, transport: asyncio.SubprocessTransport) -> None:
        self._transport = transport

    def _line(self, raw: bytes) -> None:
        text = raw.decode(errors="replace").rstrip()
        self.last.append(text)
        if self.as_json:
            self.say(text if text.startswith("{") else json_line(self.role, text))
            return
        name = f"{self.role:>9} {self.pid}"
        if self.colour:
            colour = _COLOURS.get(self.role.partition("-")[0], 37)
            name = f"\x1b[{colour}m{name}\x1b[0m"
        self.say(f"{name} | {text}")


class _Life(asyncio.SubprocessProtocol):
    """What one process writes, by lines, and when it ended."""

    def __init__(
        self, begin: Callable[[asyncio.SubprocessTransport], None], line: Callable[[bytes], None]
    ) -> None:
        self.exited = asyncio.Event()
        self.silent = asyncio.Event()  # both pipes are closed
        self._begin = begin
        self._line = line
        self._rest = {1: b"", 2: b""}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._begin(transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        *lines, rest = (self._rest[fd] + data).split(b"\n")
        for line in lines:
            self._line(line)
        if len(rest) >= _LONGEST_LINE:
            self._line(rest)
            rest = b""
        self._rest[fd] = rest

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if rest := self._rest.pop(fd, b""):
            self._line(rest)
        if not self._rest:
            self.silent.set()

    def process_exited(self) -> None:
        self.exited.set()


def role_command(role: str, settings: Path) -> list[str]:
    """What runs a service with these settings."""
    return [sys.executable, "-m", "pillion.ops", role, "--config", str(settings)]


def last_words(lines: Iterable[str]) -> str:
    """Why a process ended, from its last lines, without what the log puts before it."""
    said = [message(line) for line in lines] or ["it said nothing"]
    return _BEFORE.sub("", next((text for text in reversed(said) if " ends: " in text), said[-1]))


def message(line: str) -> str:
    """Of a line of a log, be it JSON or text."""
    if line.startswith("{"):
        with suppress(ValueError):
            return str(json.loads(line).get("message", line))
    return line


def json_line(service: str, text: str) -> str:
    """As services write their logs with --log-format json."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line = {"time": now, "level": "info", "service": service, "message": text}
    return json.dumps(line, ensure_ascii=False)


def exit_words(code: int) -> str:
    """`exit code 1`, or the signal's name."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def _tail(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LONGEST_LINE))
            return file.read().decode(errors="replace").splitlines()[-_KEPT_LINES:]
    except OSError as error:
        return [f"cannot read {path}: {error.strerror}"]


def die_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    """For Linux; elsewhere a killed parent leaves its children to be ended by hand."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # loaded here: a forked child must not
    parent = os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:  # it died before we asked
            os.kill(os.getpid(), number)

    return ask
