"""A second gateway of the stack: clients that lose the first go on there, by their streams' ids."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pillion.ops import ports, web
from pillion.ops.child import die_with_parent
from pillion.ops.rig import Rig, RigError

READY_SECONDS = 60.0
END_SECONDS = 60.0


@contextmanager
def second_gateway(rig: Rig) -> Iterator[str]:
    """Its URL, once it is ready. It is never struck. Raises RigError."""
    port = ports.claim("127.0.0.1", 0)
    settings, said = next(rig.state.glob("*/stack.toml")), rig.state / "second-gateway.log"
    command = (sys.executable, "-m", "pillion.ops", "gateway", "--config", str(settings))
    with said.open("wb") as log:
        process = subprocess.Popen(
            (*command, "--port", str(port)),
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent(signal.SIGKILL),  # noqa: PLW1509 - it only calls prctl
        )
    url = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + READY_SECONDS
        while not _ready(url):
            if process.poll() is not None or time.monotonic() > end:
                raise RigError(f"the second gateway is not ready; it said:\n{said.read_text()[-2000:]}")
            time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ready(url: str) -> bool:
    try:
        return web.get(f"{url}/health/ready", timeout=2.0)[0] == 200
    except web.Unreachable:
        return False
