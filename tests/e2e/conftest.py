"""Whole stacks as users start them: `pillion up`, on a free port and with a state folder of their own."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pillion.modelfiles import Located
from pillion.ops.rig import Rig

StartStack = Callable[..., Rig]
ADMIN_KEY = "root"


@pytest.fixture(scope="session")
def stack(demo: Located, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One stack with the demo model for all tests that only ask it things."""
    running = Rig(tmp_path_factory.mktemp("stack"), "--admin-key", ADMIN_KEY)
    running.wait_line("ready after")
    yield running
    assert running.end() == 0


@pytest.fixture
def start_stack(tiny_model: Callable[..., Path], tmp_path: Path) -> Iterator[StartStack]:
    """Starts stacks with a tiny model, for tests that break them."""
    started = []

    def start(*arguments: str) -> Rig:
        running = Rig(tmp_path / f"s{len(started)}", "--model", str(tiny_model("smollm2")), *arguments)
        started.append(running)
        return running

    yield start
    for running in started:
        running.end(signal.SIGKILL)
