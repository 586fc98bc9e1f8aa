"""Where sockets are, and that nothing of it is left."""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pillion.ops import sockets
from pillion.ops.stack import Lock


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Short, as /run/user/1000 is."""
    folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="run"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_sockets_of_a_deep_state_folder_go_to_a_short_one(
    tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shallow = Path("/tmp") / f"pillion-test-{os.getpid()}"
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    try:
        assert sockets.folder(shallow) == shallow
    finally:
        shallow.rmdir()
    short = sockets.folder(deep)
    assert short.parent == runtime
    assert short == sockets.folder(deep) != sockets.folder(deep.with_name("e" * 100))
    assert stat.S_IMODE(short.stat().st_mode) == 0o700
    shutil.rmtree(runtime)
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    elsewhere = sockets.folder(deep)
    try:
        assert len(str(elsewhere / "executor-0.sock")) <= 107
        assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o700
        (elsewhere / "held").touch()
        sockets.leave(deep)
        assert elsewhere.is_dir()  # somebody still has one there
        (elsewhere / "held").unlink()
        sockets.leave(deep)
        assert not elsewhere.exists()
    finally:
        shutil.rmtree(elsewhere, ignore_errors=True)


def test_a_state_folder_is_no_folder_for_sockets_only() -> None:
    state = Path(tempfile.mkdtemp(dir="/tmp", prefix="s"))
    sockets.leave(state)
    assert state.is_dir()
    state.rmdir()


def test_a_start_removes_what_killed_stacks_left(tmp_path: Path, runtime: Path) -> None:
    names = ("killed", "removed", "lives", "unlocked")
    states = {name: tmp_path / f"{name:x<100}" for name in names}
    for state in states.values():
        state.mkdir()
    places = {name: sockets.folder(state) for name, state in states.items()}
    locks = {name: Lock(states[name]) for name in ("killed", "lives")}
    (runtime / "pillion-no-stack").mkdir()
    try:
        for name in names:
            (places[name] / "valkey.sock").touch()
        for lock in locks.values():
            lock.take()
        locks["killed"].release()
        states["removed"].rmdir()
        again = sockets.folder(states["lives"])
        assert set(runtime.iterdir()) == {again, places["unlocked"], runtime / "pillion-no-stack"}
        assert again == places["lives"] and (again / "valkey.sock").exists()
        assert sockets.folder(states["killed"]) == places["killed"]
    finally:
        for lock in locks.values():
            lock.release()
