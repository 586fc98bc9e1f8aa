"""`pillion doctor`: what this machine has, what is missing, and the remedy."""

import importlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import click

from pillion.config import Config
from pillion.modelfiles import ModelFileError
from pillion.modelfiles.locate import locate, on_hub
from pillion.ops import banner, ports, stack, valkey

Verdict = Literal["ok", "warn", "fail"]

_COLOURS: dict[Verdict, str] = {"ok": "green", "warn": "yellow", "fail": "red"}
_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "asimd", "bf16", "i8mm", "sve")
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, what was found, and with `warn` and `fail` what to do."""

    verdict: Verdict
    name: str
    found: str
    remedy: str = ""


Check = Callable[[Config], Finding]


def examine(config: Config) -> int:
    """Prints every finding. Returns 1 where something is missing that `pillion up` needs."""
    verdicts = []
    for finding in findings(config):
        verdicts.append(finding.verdict)
        mark = click.style(f"{finding.verdict:<4}", fg=_COLOURS[finding.verdict])
        remedy = f"; {finding.remedy}" if finding.remedy else ""
        click.echo(f"{mark}  {finding.name:<12}  {finding.found}{remedy}")
    return int("fail" in verdicts)


def findings(config: Config) -> Iterator[Finding]:
    checks: tuple[Check, ...] = (
        _python, _cores, _instructions, _memory, _state, _models, _torch, _compiler, _redis, _port, _model,
        _stacks,
    )  # fmt: skip
    for check in checks:
        yield check(config)


def _python(_: Config) -> Finding:
    return Finding("ok", "python", f"{platform.python_version()} at {sys.executable}")


def _cores(_: Config) -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = f"{cores} of {os.cpu_count()} for this process"
    if cores < 2:
        return Finding(
            "warn", "cores", found, "the services and the model share one; two or more give steadier streams"
        )
    return Finding("ok", "cores", found)


def _instructions(_: Config) -> Finding:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return Finding("ok", "cpu", platform.machine())
    lines = [
        line.partition(":")[2].split()
        for line in text.splitlines()
        if line.lower().startswith(("flags", "features"))
    ]
    has = [flag for flag in _FLAGS if lines and flag in lines[0]]
    found = f"{platform.machine()}: {', '.join(has) or 'none of ' + ', '.join(_FLAGS)}"
    if not {"avx2", "asimd"} & set(has):
        return Finding("warn", "cpu", found, "it computes without vector instructions, slowly")
    if not {"avx512_bf16", "amx_bf16", "bf16"} & set(has):
        return Finding("warn", "cpu", found, "bfloat16 is emulated; --dtype float32 may be faster")
    return Finding("ok", "cpu", found)


def _memory(_: Config) -> Finding:
    available = _available_memory()
    if available is None:
        return Finding("ok", "memory", "this system does not tell")
    found = f"{available / _GIB:.1f} GiB available"
    if available < 1 * _GIB:
        return Finding("fail", "memory", found, "the demo model needs 1 GiB; end other programs")
    if available < 2 * _GIB:
        return Finding("warn", "memory", found, "enough for the demo model only")
    return Finding("ok", "memory", found)


def _available_memory() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    limit = Path("/sys/fs/cgroup/memory.max")
    with suppress(OSError, ValueError):  # no container, or one without a limit
        found.append(int(limit.read_text()) - int((limit.parent / "memory.current").read_text()))
    return min(found, default=None)


def _state(config: Config) -> Finding:
    return _folder("state", config.state_path, 256 << 20, "--state-dir")


def _models(config: Config) -> Finding:
    return _folder("models", config.cache_path, 512 << 20, "--cache-dir")


def _folder(name: str, path: Path, needed: int, flag: str) -> Finding:
    standing = path
    while not standing.exists():
        standing = standing.parent
    if not os.access(standing, os.W_OK):
        return Finding("fail", name, f"{path} cannot be written", f"name another folder with {flag}")
    free = shutil.disk_usage(standing).free
    found = f"{path}, {free / _GIB:.1f} GiB free"
    if free < needed:
        return Finding(
            "fail", name, found, f"free {(needed - free) >> 20} MiB, or name another folder with {flag}"
        )
    return Finding("ok", name, found)


def _torch(_: Config) -> Finding:
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        return Finding("fail", "torch", str(error), "pip install torch==2.13.0 'pillion[all]'")
    if torch.cuda.is_available():
        return Finding("ok", "torch", f"{metadata.version('torch')}, {torch.cuda.get_device_name(0)}")
    return Finding("ok", "torch", f"{metadata.version('torch')}, no GPU in sight: computes on the CPU")


def _compiler(_: Config) -> Finding:
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        path = shutil.which(name) if name else None
        if path:
            done = subprocess.run(
                [path, "--version"], capture_output=True, text=True, timeout=10, check=False
            )
            return Finding("ok", "compiler", (done.stdout.splitlines() or [path])[0])
    return Finding(
        "warn",
        "compiler",
        "no C++ compiler",
        "our own kernels need one (Debian, Ubuntu: apt install g++); without it torch's do the work, slower",
    )


def _redis(config: Config) -> Finding:
    if config.stack.redis is not None:
        return Finding("ok", "redis", "the one that --redis names; no embedded Valkey is started")
    try:
        path = valkey.binary()
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True)
    except stack.StackError as error:
        return Finding("fail", "valkey", str(error))
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("fail", "valkey", f"cannot run it: {error}", "give a Redis that runs with --redis URL")
    return Finding("ok", "valkey", done.stdout.strip())


def _port(config: Config) -> Finding:
    here = stack.running(config)
    if here is not None:
        return Finding("ok", "port", f"{here.gateway.port}, taken by the stack {config.stack.stack!r} itself")
    try:
        port = ports.claim(config.gateway.host, config.gateway.port)
    except stack.StackError as error:
        return Finding("fail", "port", str(error))
    if unsafe := banner.warning(config):
        return Finding("warn", "port", f"{config.gateway.host}:{port} is free", unsafe)
    return Finding("ok", "port", f"{config.gateway.host}:{port} is free")


def _model(config: Config) -> Finding:
    name = config.model.model
    if name == "demo":
        files = list((config.cache_path / "demo").glob("*.gguf"))
        if files:
            return Finding("ok", "model", f"demo, at {files[0]}")
        return Finding("warn", "model", "demo, not fetched yet", "`pillion up` fetches it (94 MiB)")
    if Path(name).expanduser().exists() or not on_hub(name):
        try:
            return Finding("ok", "model", str(locate(name).path))
        except ModelFileError as error:
            return Finding("fail", "model", str(error))
    return Finding("warn", "model", f"{name}, no path on this machine", "`pillion up` asks the hub for it")


def _stacks(config: Config) -> Finding:
    found = [
        f"{here.stack.stack} (pid {pid}) at {stack.url(here)}" for pid, here in stack.all_running(config)
    ]
    return Finding("ok", "stacks", ", ".join(found) or "none runs")
