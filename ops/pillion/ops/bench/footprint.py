"""Start-up, idle CPU and memory of a whole stack: `python -m pillion.ops.bench.footprint [flags of up]`.

Needs psutil. The stack has a state folder of its own and a free port; the model must be cached for the time
to mean what it says.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil

IDLE_SECONDS = 20.0
START_DEADLINE = 300.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_DEADLINE
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"pillion up ended with {process.returncode}")
        try:
            with urllib.request.urlopen(url + "/health/ready", timeout=1):
                return
        except (OSError, urllib.error.URLError):
            time.sleep(0.05)
    raise SystemExit(f"not ready within {START_DEADLINE:g} s")


def one_token(url: str) -> None:
    body = json.dumps({"prompt": "Hello", "max_tokens": 1}).encode()
    request = urllib.request.Request(url + "/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        response.read()


def role(process: psutil.Process) -> str:
    """The service as its command line shows it."""
    line = process.cmdline()
    if "valkey" in " ".join(line[:1]):
        return "valkey"
    return next(
        (word for word in ("gateway", "admission", "scheduler", "executor", "up") if word in line), line[0]
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as state:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        command = [
            str(Path(sys.executable).with_name("pillion")),
            "up",
            "--port",
            str(port),
            "--state-dir",
            state,
        ]
        start = time.monotonic()
        with Path(os.devnull).open("wb") as sink:
            process = subprocess.Popen(command + sys.argv[1:], stdout=sink, stderr=sink)
        try:
            wait_ready(url, process)
            ready = time.monotonic() - start
            one_token(url)
            token = time.monotonic() - start
            time.sleep(2.0)
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            before = {member.pid: sum(member.cpu_times()[:2]) for member in family}
            time.sleep(IDLE_SECONDS)
            used = {
                role(member): (sum(member.cpu_times()[:2]) - before[member.pid]) / IDLE_SECONDS
                for member in family
            }
            result = {
                "ready_s": ready,
                "first_token_s": token,
                "idle_cores": {"all": sum(used.values()), **used},
                "resident_mib": {role(member): member.memory_info().rss / 2**20 for member in family},
            }
            print(json.dumps(result, indent=1))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


if __name__ == "__main__":
    main()
