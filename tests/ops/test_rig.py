"""The stack under watch: what a log tells of it."""

import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pillion.ops.rig import Rig, RigError, died, tracebacks

LOG = """\
  gateway 12 | 10:00:00 ERROR   request x failed
  gateway 12 | Traceback (most recent call last):
  gateway 12 |   File "a.py", line 3, in f
  gateway 12 |     g()
  gateway 12 | ValueError: {number}
  gateway 12 | 10:00:00 INFO    on
"""


def test_each_kind_of_traceback_is_told_once() -> None:
    lines = "".join(LOG.format(number=number) for number in range(3)).splitlines()
    (told,) = tracebacks(lines)
    assert told.startswith("10:00:00 ERROR   request x failed\nTraceback") and told.endswith("ValueError: 0")
    assert len(tracebacks([*lines, *LOG.replace("line 3", "line 4").splitlines()])) == 2
    assert tracebacks(["  gateway 12 | 10:00:00 INFO    on"]) == []


def test_who_died() -> None:
    assert died({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 9}) == ["b 2 is now 9", "c 3 is gone"]


def test_a_death_is_trouble(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    with Rig(tmp_path, "--model", str(tiny_model("smollm2")), "--threads", "1") as rig:
        assert rig.url
        before = rig.pids()
        assert set(before) == {"valkey", "executor", "scheduler", "admission", "gateway"}
        assert set(rig.metrics) == {"executor", "scheduler", "admission", "gateway"}
        admission = psutil.Process(before["admission"])
        admission.send_signal(signal.SIGKILL)
        psutil.wait_procs([admission], timeout=30)
        assert any("admission" in death for death in died(before, rig.pids()))
        rig.end()  # 1, where it had not seen the death before
        assert any("admission" in text and "SIGKILL" in text for text in rig.trouble())


def test_a_stack_that_cannot_start_says_why(tmp_path: Path) -> None:
    with (
        Rig(tmp_path, "--model", str(tmp_path / "nowhere")) as rig,
        pytest.raises(RigError, match="nowhere"),
    ):
        assert rig.url
