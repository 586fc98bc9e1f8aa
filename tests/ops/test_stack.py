"""The stack's folders, lock and settings file."""

import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillion.config import Config, Gateway, Model, Stack, load
from pillion.ops import stack

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def config_in(folder: Path) -> Config:
    return Config(stack=Stack(state_dir=str(folder)))


@given(keys=st.lists(TEXT, max_size=3), model=TEXT, port=st.integers(0, 65535), seconds=st.floats(0.001, 1e9))
def test_settings_come_back_as_they_were(
    keys: list[str], model: str, port: int, seconds: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    config = Config(
        model=Model(model=model),
        gateway=Gateway(api_key=tuple(keys), port=port, request_timeout=seconds),
    )
    file = tmp_path_factory.mktemp("toml") / "stack.toml"
    file.write_text(stack.to_toml(config))
    assert load(environ={}, file=file).config == config


def test_settings_are_for_the_user_only(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    stack.private_folder(config.state_path)
    os.umask(old := os.umask(0))
    try:
        os.umask(0)
        file = stack.write_settings(config)
    finally:
        os.umask(old)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(config.state_path.stat().st_mode) == 0o700


def test_an_open_folder_is_closed_and_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    assert stat.S_IMODE(stack.private_folder(tmp_path / "open").stat().st_mode) == 0o700
    (tmp_path / "file").touch()
    with pytest.raises(stack.StackError, match="file"):
        stack.private_folder(tmp_path / "file")


def test_the_second_of_a_name_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    first, second = stack.Lock(tmp_path), stack.Lock(tmp_path)
    first.take()
    assert second.held()
    begin = time.monotonic()
    with pytest.raises(stack.StackError, match=rf"already runs \(pid {os.getpid()}\).*--stack NAME"):
        second.take()
    stack.settings_file(tmp_path).write_text("[gateway]\nport = 1234\n")
    with pytest.raises(stack.StackError, match=r"already runs at http://127.0.0.1:1234 \(pid"):
        second.take()
    assert time.monotonic() - begin < 3, "it did not wait as for what was killed"
    first.release()
    assert not second.held()
    second.take()
    second.release()


def test_who_only_looks_refuses_nobody(tmp_path: Path) -> None:
    lock, looking = stack.Lock(tmp_path), (tmp_path / "up").open("w")
    fcntl.flock(looking, fcntl.LOCK_SH)
    threading.Timer(0.05, looking.close).start()
    lock.take()
    lock.release()


def test_a_lock_waits_for_what_a_killed_stack_left_behind(tmp_path: Path) -> None:
    killed = (
        "import subprocess, sys; from pathlib import Path; from pillion.ops.stack import Lock\n"
        "lock = Lock(Path(sys.argv[1])); lock.take()\n"
        # As Valkey, which ends after it.
        "print(subprocess.Popen(['sleep', '60'], pass_fds=(lock.descriptor,), stdout=2).pid)"
    )
    left = int(subprocess.check_output([sys.executable, "-c", killed, str(tmp_path)]))
    lock = stack.Lock(tmp_path)
    assert not lock.held(), "what is left behind serves nothing"
    with pytest.raises(stack.StackError, match="something of an earlier stack still holds"):
        lock.take(patience=0.0)
    lock.release()
    threading.Timer(0.2, os.kill, (left, signal.SIGKILL)).start()
    lock.take(patience=20.0)
    assert lock.held()
    assert lock.holder() == os.getpid()
    lock.release()


def test_running_gives_the_settings_of_the_stack_that_runs(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    stack.private_folder(config.state_path)
    serving = msgspec.structs.replace(config, gateway=Gateway(port=1234, api_key=("secret",)))
    stack.write_settings(serving)
    assert stack.running(config) is None, "a file that a killed stack left behind is no stack"
    lock = stack.Lock(config.state_path)
    lock.take()
    assert stack.running(config) == serving
    assert list(stack.all_running(config)) == [(os.getpid(), serving)]
    other = msgspec.structs.replace(config, stack=msgspec.structs.replace(config.stack, stack="nosuch"))
    assert "no stack 'nosuch' runs here" in (told := stack.absent(other))
    assert (
        "those that run: default at http://127.0.0.1:1234; start it with `pillion up --stack nosuch`" in told
    )
    lock.release()
    assert "those that run" not in stack.absent(other)


def test_a_folder_of_another_format_is_left_alone(tmp_path: Path) -> None:
    stack.claim_format(tmp_path)  # a new one, or of the first release, which wrote none
    stack.claim_format(tmp_path)
    assert (tmp_path / "format").read_text() == "1\n"
    (tmp_path / "format").write_text("2\n")
    with pytest.raises(stack.StackError, match="format '2', this one reads 1; start that release again"):
        stack.claim_format(tmp_path)
    assert (tmp_path / "format").read_text() == "2\n"
