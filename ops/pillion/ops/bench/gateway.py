"""What the gateway costs and adds: `python -m pillion.ops.bench.gateway`.

Valkey, gateway, admission and scheduler as they are, and an executor whose steps take no time or a fixed one
(`costless`); this process is the client. CPU time is of the gateway's process, and counts while all streams
run. What a token is late is its gap at the client less a step. Who was at the limit is told beside each
figure: on a small machine that may be the client, or all cores together.
"""

import asyncio
import gc
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import click
import psutil
import uvloop

from pillion.config import Config, ConfigError, load
from pillion.ops import health, sockets, stack, valkey
from pillion.ops.bench.cases import Failed, summary
from pillion.ops.bench.client import session
from pillion.ops.bench.gateway_report import report
from pillion.ops.bench.report import shown
from pillion.ops.bench.tap import Tap
from pillion.ops.child import die_with_parent, exit_words, role_command
from pillion.ops.report import NoReport, tell, write
from pillion.ops.stack import StackError
from pillion.ops.traces import prompt
from pillion.ops.up import resolve

PROMPT = 16  # tokens
AT_A_TIME = 16  # clients of the closed loop of short requests
PACED = ((1, 20.0), (100, 20.0), (1000, 200.0), (1000, 20.0))
SATURATED = 256  # streams
ENDLESS = 16_000  # tokens: nearly the context that the executor claims
FULL = 0.9  # of a core, from which on a process is at its limit
_LACK = "nothing came while it was measured; give it more --seconds"
_START_SECONDS = 60.0
_BEGIN_SECONDS = 60.0  # until all streams have a token
_END_SECONDS = 10.0
_ECHO_SECONDS = 10.0

Result = dict[str, Any]
Process = subprocess.Popen[bytes]


class Costless:
    """The running stack."""

    def __init__(self, config: Config, processes: Mapping[str, Process], pace: socket.socket) -> None:
        self.address = (config.gateway.host, config.gateway.port)
        self.url = stack.url(config)
        self._pace = pace
        self._processes = {role: psutil.Process(process.pid) for role, process in processes.items()}

    def step(self, seconds: float) -> None:
        """So long a step takes from now on. Raises OSError where the executor does not answer."""
        self._pace.sendall(f"{seconds}\n".encode())
        self._pace.recv(64)  # its echo

    def used(self) -> dict[str, float]:
        """CPU seconds of each process so far, ours and all others too. Raises psutil.NoSuchProcess."""
        used = {role: sum(process.cpu_times()[:2]) for role, process in self._processes.items()}
        used["client"] = time.process_time()
        machine = psutil.cpu_times()
        idle = machine.idle + getattr(machine, "iowait", 0.0)
        return used | {"others": sum(machine[:8]) - idle - sum(used.values())}


@asynccontextmanager
async def running(model: str, seed: int) -> AsyncIterator[Costless]:
    """A stack of its own, ready. Raises StackError, ConfigError; Failed where it does not come up."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, ExitStack() as held:
        flags = {
            "model": model, "state_dir": folder, "port": 0, "log_level": "warning", "drain_timeout": 1.0,
            "max_num_seqs": 1024, "max_num_batched_tokens": 1 << 15, "multi_step_seconds": 0.0,
        }  # fmt: skip
        config = load(flags, environ={}).config
        stack.private_folder(config.state_path)
        config = resolve(config)
        settings = stack.write_settings(config)
        here, there = map(held.enter_context, socket.socketpair())
        here.settimeout(_ECHO_SECONDS)
        redis = sockets.folder(config.state_path) / "valkey.sock"
        costless = [sys.executable, "-m", "pillion.ops.bench.costless", "--config", str(settings)]
        # Ended in the opposite order: who lets work in goes first.
        commands = {
            "valkey": valkey.configure(config.state_path, redis),
            "executor": [*costless, "--seed", str(seed), "--pace", str(there.fileno())],
            **{role: role_command(role, settings) for role in ("scheduler", "admission", "gateway")},
        }
        processes: dict[str, Process] = {}
        for role, command in commands.items():
            processes[role] = _start(command, there.fileno())
            held.callback(_end, processes[role])
            while role == "valkey" and not await valkey.ping(redis):
                _alive(processes)
                await asyncio.sleep(0.02)
        until = time.monotonic() + _START_SECONDS
        while (missing := await asyncio.to_thread(health.gateway, stack.url(config))) is not None:
            _alive(processes)
            if time.monotonic() > until:
                raise Failed(f"the stack is not ready after {_START_SECONDS:g} s: {missing}")
            await asyncio.sleep(0.1)
        yield Costless(config, processes, here)


def _start(command: Sequence[str], inherit: int) -> Process:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PILLION_")}
    die = die_with_parent(signal.SIGKILL)
    return subprocess.Popen(command, env=environ, stdout=sys.stderr, pass_fds=(inherit,), preexec_fn=die)  # noqa: PLW1509 - it only calls prctl


def _alive(processes: Mapping[str, Process]) -> None:
    for role, process in processes.items():
        if (code := process.poll()) is not None:
            raise Failed(f"the {role} ended with {exit_words(code)}; what it said is above")


def _end(process: Process) -> None:
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _say(line: str) -> None:
    click.echo(line, err=True)


# --- what is measured ------------------------------------------------------------------------------


async def requests(running: Costless, seconds: float, random_: random.Random) -> Result:
    """Completions of one token, not streamed, by a closed loop of clients. Raises Failed."""
    running.step(0.0)
    taken: list[float] = []
    async with session() as http:

        async def client(until: float) -> None:
            while (began := time.perf_counter()) < until:
                body = _body(prompt(random_, PROMPT), 1)
                async with http.post(f"{running.url}/v1/completions", json=body) as response:
                    if response.status != 200:
                        raise Failed(f"a request failed: {response.status} {await response.text()}")
                    await response.read()
                taken.append(time.perf_counter() - began)

        async def loop(seconds: float) -> None:
            until = time.perf_counter() + seconds
            await asyncio.gather(*(client(until) for _ in range(AT_A_TIME)))

        await loop(min(1.0, seconds))  # connections, and whatever is made on first use
        taken.clear()
        began, before = time.perf_counter(), running.used()
        await loop(seconds)
        took, used = time.perf_counter() - began, _less(running.used(), before)
    return {
        "at_a_time": AT_A_TIME,
        "requests": len(taken),
        "seconds": took,
        "requests_per_s": len(taken) / took,
        "gateway_ms_per_request": used["gateway"] / len(taken) * 1000,
        "request_ms": summary(taken, _LACK),
        **_load(used, took),
    }


async def streams(
    running: Costless, count: int, step: float, seconds: float, random_: random.Random
) -> Result:
    """So many streams, each token an event, over `seconds` in which all of them run. Raises Failed.

    They begin one after the other, 4 ms apart, so that the time to the first token is not that of a queue.
    """
    running.step(step)
    taps = [Tap(running.address, _body(prompt(random_, PROMPT), None)) for _ in range(count)]
    try:
        for number, tap in enumerate(taps):
            await tap.open()
            if number < count - 1:
                await asyncio.sleep(0.004)
        async with asyncio.timeout(_BEGIN_SECONDS):
            for tap in taps:
                await tap.began.wait()
        began, before = time.perf_counter(), running.used()
        await asyncio.sleep(seconds)
        ended, used = time.perf_counter(), _less(running.used(), before)
        over = [tap for tap in taps if tap.ended.is_set()]
        if over:
            raise Failed(f"{len(over)} of {count} streams ended too soon: {over[0].last()}")
    except TimeoutError:
        late = [tap for tap in taps if not tap.began.is_set()]
        raise Failed(
            f"{len(late)} of {count} streams got no token within {_BEGIN_SECONDS:g} s: {late[0].last()}"
        ) from None
    finally:
        for tap in taps:
            await tap.close()
    lines = [tap.line() for tap in taps]
    gaps = [
        gap
        for line in lines
        for gap, at in zip(line.gaps, line.tokens[1:], strict=True)
        if began <= at < ended
    ]
    return {
        "streams": count,
        "step_ms": step * 1000,
        "late_ms": summary([gap - step for gap in gaps], _LACK),
        "ttft_ms": summary([line.ttft for line in lines], _LACK),
        "tokens": len(gaps),
        "seconds": ended - began,
        "tokens_per_s": len(gaps) / (ended - began),
        "coalesced_share": gaps.count(0.0) / len(gaps),
        "gateway_us_per_token": used["gateway"] / len(gaps) * 1e6,
        **_load(used, ended - began),
    }


def _body(ids: Sequence[int], tokens: int | None) -> Result:
    """Greedy; without a number of tokens a stream that goes on as long as the context."""
    body = {"prompt": list(ids), "temperature": 0, "ignore_eos": True}
    if tokens is not None:
        return body | {"max_tokens": tokens}
    return body | {"max_tokens": ENDLESS, "stream": True, "return_token_ids": True}


def _less(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {name: after[name] - before[name] for name in after}


def _load(used: Mapping[str, float], seconds: float) -> Result:
    shares = {name: each / seconds for name, each in used.items()}
    return {"cores": shares, "limit": limit(shares, psutil.cpu_count() or 1)}


def limit(shares: Mapping[str, float], cores: int) -> str:
    """What held the rate down: the process that fills a core, the machine with all that runs there, or none.

    `shares`: of one core, by process. All but Valkey have one thread that matters.
    """
    name, most = max((each for each in shares.items() if each[0] != "others"), key=lambda each: each[1])
    if most >= FULL:
        return name
    return "machine" if sum(shares.values()) >= FULL * cores else "none"


async def measure(model: str, seed: int, seconds: float, paced: Sequence[tuple[int, float]]) -> Result:
    """All figures; `paced`: streams, and a step's milliseconds. Raises as `running`."""
    random_ = random.Random(seed)
    gc.disable()  # a collection here would be a pause of every stream
    async with running(model, seed) as costless:
        short = await requests(costless, seconds, random_)
        _say(f"requests: {shown(short['gateway_ms_per_request'])} ms of the gateway each")
        each = []
        for count, step in paced:
            each.append(await streams(costless, count, step / 1000, seconds, random_))
            _say(f"{count} streams, step {step:g} ms: {shown(each[-1]['late_ms'])} ms late")
        # Last: what the scheduler is ahead of the gateway by then is of no further use.
        saturated = await streams(costless, SATURATED, 0.0, seconds, random_)
        _say(f"saturated: {shown(saturated['tokens_per_s'])} tokens/s")
    return {"requests": short, "paced": each, "saturated": saturated}


# --- the command ------------------------------------------------------------------------------------


@click.command()
@click.option("--model", default="demo", show_default=True, help="whose tokenizer is used")
@click.option("--seed", default=1, show_default=True, help="of prompts and tokens")
@click.option("--seconds", default=6.0, show_default=True, help="of each case, its start not counted")
@click.option(
    "--paced", multiple=True, type=(int, float), default=PACED, show_default=True,
    help="streams, and milliseconds of a step",
)  # fmt: skip
@click.option("--output", type=click.Path(path_type=Path), help="keep the raw result here, as JSON")
@click.option("--report", "page", metavar="FILE", help="write a report here: FILE.html, .json and .csv")
def main(
    model: str,
    seed: int,
    seconds: float,
    paced: tuple[tuple[int, float], ...],
    output: Path | None,
    page: str | None,
) -> None:
    """What a request and a token cost the gateway, how many tokens/s it streams, and what it adds."""
    options: dict[str, Any] = {"model": model, "seed": seed, "seconds": seconds, "paced": paced}
    try:
        result = uvloop.run(measure(**options))
    except (Failed, StackError, ConfigError, OSError) as error:
        raise click.ClickException(str(error)) from None
    result = {"options": options, "cpus": psutil.cpu_count(), **result}
    if output:
        output.write_text(json.dumps(result, indent=1) + "\n")
    made = report(result)
    try:
        tell(made, write(made, page) if page else ())
    except NoReport as error:
        raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    main()
