"""A stack of our own as users start it, `pillion up`: its processes, what they say, and whether it serves."""

import asyncio
import re
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psutil

from pillion.ops.child import die_with_parent

_ROLE = re.compile(r"pillion-(valkey)|-m pillion\.ops (\w+)|(valkey)-server")
_LINE = re.compile(r"^ *(?P<role>[\w-]+) (?P<pid>\d+) \| (?P<text>.*)$")
_END_SECONDS = 90.0
_LIMIT = 1 << 20  # bytes of a line


class Broken(Exception):
    """The stack is not there any more, or does not come back."""


@dataclass(frozen=True, slots=True)
class Line:
    at: float  # seconds of `time.monotonic`
    role: str
    pid: int
    text: str


class Stack:
    """Owns the process of `pillion up`; with it all its children end."""

    def __init__(self, state: Path, arguments: Sequence[str], log: Path | None = None) -> None:
        self.state = state
        self.lines: list[Line] = []
        self.url = ""
        self._command = [
            *(sys.executable, "-m", "pillion.ops", "up", "--port", "0", "--state-dir", str(state)),
            *("--metrics-port", "0", *arguments),
        ]
        self._log = log.open("w") if log else None
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._serves = asyncio.Event()

    async def start(self, seconds: float = 300.0) -> None:
        """Returns when it serves. Raises Broken."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, limit=_LIMIT,
            preexec_fn=die_with_parent(signal.SIGTERM),
        )  # fmt: skip
        self._reader = asyncio.create_task(self._read(self._process))
        serves = asyncio.create_task(self._serves.wait())
        await asyncio.wait({serves, self._reader}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not serves.done():
            serves.cancel()
            raise Broken(f"`pillion up` does not serve:\n{self.tail()}")

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for raw in process.stdout:
            text = raw.decode(errors="replace").rstrip()
            now = time.monotonic()
            if self._log is not None:
                self._log.write(f"{now:.3f} {text}\n")
                self._log.flush()
            if found := _LINE.match(text):
                self.lines.append(Line(now, found["role"], int(found["pid"]), found["text"]))
            else:
                self.lines.append(Line(now, "", 0, text))
                if served := re.match(r"^  at +(http://\S+)/v1$", text):
                    self.url = served[1]
                    self._serves.set()

    def tail(self, count: int = 40) -> str:
        return "\n".join(f"{line.role} {line.pid} | {line.text}" for line in self.lines[-count:])

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def pids(self) -> dict[str, list[int]]:
        """The processes of each role, zombies left out. Raises Broken."""
        if self._process is None or not self.alive:
            raise Broken(f"`pillion up` has ended:\n{self.tail()}")
        found: dict[str, list[int]] = {}
        for child in psutil.Process(self._process.pid).children():
            try:
                command, state = " ".join(child.cmdline()), child.status()
            except psutil.NoSuchProcess:
                continue
            role = _ROLE.search(command)
            if role and state != psutil.STATUS_ZOMBIE:
                found.setdefault(next(filter(None, role.groups())), []).append(child.pid)
        return found

    async def ready(self, session: aiohttp.ClientSession) -> bool:
        try:
            async with session.get(
                f"{self.url}/health/ready", timeout=aiohttp.ClientTimeout(total=2)
            ) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    async def scheduled(self, session: aiohttp.ClientSession, pids: Sequence[int]) -> dict[str, int]:
        """Sequences by state, as the metrics of these schedulers have them now."""
        counts = {"waiting": 0, "prefilling": 0, "decoding": 0}
        for pid in pids:
            said = [line.text for line in self.lines if line.pid == pid and "metrics on " in line.text]
            if not said:
                continue
            url = said[-1].rpartition("metrics on ")[2].strip()
            try:
                async with session.get(url, timeout=aiohttp.ClientTimeout(total=1)) as answer:
                    text = await answer.text()
            except (aiohttp.ClientError, OSError, TimeoutError):
                continue
            for state, count in re.findall(r'^pillion_sequences\{state="(\w+)"\} (\S+)', text, re.MULTILINE):
                counts[state] = counts.get(state, 0) + int(float(count))
        return counts

    async def end(self) -> int:
        """Asks it to end and returns its exit code; kills it when it does not end."""
        if self._process is None or self._reader is None:
            return 0
        if self.alive:
            self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_END_SECONDS):
                code = await self._process.wait()
        except TimeoutError:
            self._process.kill()
            code = await self._process.wait()
        await self._reader
        if self._log is not None:
            self._log.close()
        return code
