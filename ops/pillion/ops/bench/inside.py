"""A look into a server while it is under load: its executors' metrics, and its processes on this machine."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import psutil

from pillion.config import Config
from pillion.ops import banner, stack
from pillion.ops.bench.cases import Failed
from pillion.ops.bench.floor import Samples, account, between, samples
from pillion.ops.bench.server import NoServer
from pillion.ops.processes import roles
from pillion.telemetry import names

_SETTLE = 20  # looks at counters until they stay as they are
_LOOK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Seen:
    counters: Samples
    cpu: dict[str, float]  # seconds of each role's processes


@dataclass(slots=True)
class Inside:
    """What can be seen of one server; nothing where it is not ours, or elsewhere."""

    metrics: list[str] = field(default_factory=list)  # URLs, one an executor
    up: int | None = None  # the pid of its `pillion up`
    threads: int = 0  # that compute, of all executors
    quantization: str | None = None  # of the weights; None: not known

    async def look(self, http: aiohttp.ClientSession) -> Seen:
        """Raises NoServer, Failed."""
        try:
            cpu = {} if self.up is None else cpu_seconds(self.up)
        except psutil.NoSuchProcess:
            raise Failed("`pillion up` has ended") from None
        return Seen(samples([await _text(http, url) for url in self.metrics]), cpu)

    async def since(self, http: aiohttp.ClientSession, before: Seen, seconds: float) -> dict[str, Any]:
        """What happened within so many seconds. An executor counts a step a moment after its tokens are out.

        Raises NoServer, Failed.
        """
        after = await self.look(http)
        last = after.counters
        for _ in range(_SETTLE if self.metrics else 0):
            await asyncio.sleep(0.01)
            last, earlier = (await self.look(http)).counters, last
            if last == earlier:
                break
        told: dict[str, Any] = {}
        if self.metrics:
            try:
                told["executor"] = account(between(before.counters, last), seconds, len(self.metrics))
            except ValueError as error:
                raise Failed(str(error)) from None
        if self.up is not None:
            used = {role: value - before.cpu.get(role, 0.0) for role, value in after.cpu.items()}
            told["cpu_s"] = used
            if self.metrics:
                told["cpu_outside_kernels"] = outside(used, told["executor"]["parts_s"], self.threads)
        return told


def outside(cpu: dict[str, float], parts: dict[str, float], threads: int) -> float:
    """The least share of all CPU time that was not in the executors' kernels.

    In them was at most what the executors used, and at most all threads while forwards and logits took place.
    """
    most = threads * (parts.get("forward", 0.0) + parts.get("logits", 0.0))
    kernels = min(cpu.get("executor", 0.0), most)
    return 1 - kernels / total if (total := sum(cpu.values())) else 0.0


def cpu_seconds(up: int) -> dict[str, float]:
    """Of each role's processes so far, those that have ended left out. Raises psutil.NoSuchProcess."""
    return {role: sum(map(_cpu, pids)) for role, pids in (roles(up) | {"up": [up]}).items()}


def _cpu(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


async def find(http: aiohttp.ClientSession, config: Config, url: str) -> Inside:
    """Of a server at this address of this machine, if a stack with this state folder runs there."""
    found = running(config, url)
    if found is None:
        return Inside()
    up, here = found
    with suppress(psutil.NoSuchProcess):
        executors = [await _executor(http, pid) for pid in roles(up).get("executor", ())]
        threads = banner.threads(here) * here.stack.replicas
        return Inside([each for each in executors if each], up, threads, here.model.quantization)
    return Inside()


def running(config: Config, url: str) -> tuple[int, Config] | None:
    """The stack with this state folder that serves at `url` of this machine: `pillion up`, its settings."""
    for up, here in stack.all_running(config):
        if _address(stack.url(here)) == _address(url):
            return up, here
    return None


def _address(url: str) -> tuple[str, int | None]:
    parts = urlsplit(url)
    host = parts.hostname or ""
    return "127.0.0.1" if host in ("localhost", "::1") else host, parts.port


def metrics_of(pid: int) -> list[str]:
    """Where this process may serve its metrics: wherever it listens. Raises psutil.NoSuchProcess."""
    found = []
    for connection in psutil.Process(pid).net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN:
            host = "127.0.0.1" if connection.laddr.ip in stack.ANY_HOST else connection.laddr.ip
            found.append(f"http://{f'[{host}]' if ':' in host else host}:{connection.laddr.port}/metrics")
    return found


async def _executor(http: aiohttp.ClientSession, pid: int) -> str | None:
    """Where this executor serves its metrics, if it does."""
    for url in metrics_of(pid):
        with suppress(NoServer):
            await _text(http, url)
            return url
    return None


async def _text(http: aiohttp.ClientSession, url: str) -> str:
    """An executor's exposition. Raises NoServer."""
    try:
        async with http.get(url, timeout=aiohttp.ClientTimeout(total=_LOOK_SECONDS)) as response:
            text = await response.text()
    except (aiohttp.ClientError, OSError) as error:
        raise NoServer(f"no metrics at {url} ({error}); start the stack with --metrics-port N") from None
    if names.FLOPS.name not in text:
        raise NoServer(f"{url} has no metrics of an executor; with --metrics-port N its are at port N")
    return text
