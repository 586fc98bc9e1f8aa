"""`pillion fetch` on folders as the hub's client lays them out."""

import hashlib
import queue
import re
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from pillion.ops.cli import main
from pillion.ops.fetch import progress

CONFIG = b'{"architectures": ["LlamaForCausalLM"]}'
WEIGHTS = b"weights" * 1000


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache with one model; weights are named by their SHA-256, texts by another hash."""
    folder = tmp_path / "hub/models--o--m"
    snapshot = folder / "snapshots/0123"
    snapshot.mkdir(parents=True)
    for name, content, blob in (
        ("config.json", CONFIG, "a" * 40),
        ("model.safetensors", WEIGHTS, hashlib.sha256(WEIGHTS).hexdigest()),
    ):
        file = folder / "blobs" / blob
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)
        (snapshot / name).symlink_to(f"../../blobs/{blob}")
    return snapshot


def run(model: Path, cache: Path):
    return CliRunner().invoke(main, ["fetch", "--model", str(model), "--cache-dir", str(cache)])


def test_what_is_here_is_checked_and_told(hub: Path, tmp_path: Path) -> None:
    done = run(hub, tmp_path / "cache")
    assert done.exit_code == 0, done.output
    assert done.output == f"{hub} is at {hub}: 0 MB, 1 file checked by SHA-256\n"


def test_a_damaged_file_is_told_with_its_remedy(hub: Path, tmp_path: Path) -> None:
    blob = (hub / "model.safetensors").resolve()
    blob.write_bytes(WEIGHTS[:-1] + b"x")
    done = run(hub, tmp_path / "cache")
    assert done.exit_code == 1
    assert "is damaged" in done.output
    assert f"delete {blob}" in done.output


def test_a_folder_of_ones_own_has_no_checksums(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_bytes(CONFIG)
    done = run(folder, tmp_path / "cache")
    assert done.exit_code == 0, done.output
    assert "no checksum is known" in done.output


def test_what_cannot_be_fetched_says_so(tmp_path: Path) -> None:
    done = run(tmp_path / "nothing.gguf", tmp_path / "cache")
    assert done.exit_code == 1
    assert "no model at" in done.output


def test_progress_is_told_while_bytes_come(tmp_path: Path) -> None:
    told: queue.Queue[str] = queue.Queue()
    with progress([tmp_path, tmp_path / "absent"], told.put, every=0.01):
        (tmp_path / "part").write_bytes(bytes(2_000_000))
        # What was there when it began counts for nothing, and it may begin after the first file.
        while told.empty():
            with (tmp_path / "part").open("ab") as part:
                part.write(bytes(1_000_000))
            time.sleep(0.02)
    assert re.fullmatch(r"[1-9]\d* MB so far", told.get())
