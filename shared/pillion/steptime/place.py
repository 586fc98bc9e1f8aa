"""Where a machine's cost models are kept: one file for each numeric fingerprint and kind of hardware."""

import hashlib
import os
import platform
import re
from pathlib import Path


def hardware() -> str:
    """The processor's name and the cores that this process may use. Accelerators are in the fingerprint."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = re.search(r"^model name\s*: *(.+)$", info.read_text(errors="replace"), re.MULTILINE)
        name = found[1].strip() if found else name
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"{name}, {cores} cores"


def place(cache_path: Path, fingerprint: str, machine: str) -> Path:
    """`fingerprint` is an executor's, from its facts; `machine` what `hardware` says of it."""
    return cache_path / "steptime" / f"{fingerprint}-{hashlib.sha256(machine.encode()).hexdigest()[:8]}.json"
