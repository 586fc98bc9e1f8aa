"""`pillion fetch`: puts a model's files where the services look for them, and checks them."""

import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from pillion.ops.options import Command, config_options, configure, fail

EVERY = 5.0  # seconds between two words on how much has come
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CHUNK = 1 << 20


@click.command(cls=Command)
@config_options("fetch")
def fetch(config: str | None, **flags: Any) -> None:
    """Fetch the model and check it; nothing is done for what is here.

    Takes what --model names: a hub id (HF_TOKEN, HF_HOME and HF_ENDPOINT hold), or `demo`.
    """
    from pillion.modelfiles import ModelFileError, locate
    from pillion.words import counted

    loaded = configure(flags, config)
    model = loaded.model
    try:
        with progress(_stores(loaded.cache_path), lambda line: click.echo(line, err=True)):
            located = locate(model.model, model.revision, loaded.cache_path)
        own = located.path.is_relative_to(loaded.cache_path)  # the demo model: checked where it was found
        checked = sum(own or check(path) for path in files(located.path))
    except ModelFileError as error:
        fail(str(error), 1)
    size = sum(path.stat().st_size for path in files(located.path))
    words = f"{counted(checked, 'file')} checked by SHA-256" if checked else "no checksum is known"
    click.echo(f"{model.model} is at {located.path}: {size / 1e6:.0f} MB, {words}")


def files(path: Path) -> list[Path]:
    return sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]


def check(path: Path) -> bool:
    """Whether the hub's cache tells the file's SHA-256, by the name of its blob.

    Raises ModelFileError where it is another.
    """
    from pillion.modelfiles import ModelFileError

    blob = path.resolve()
    if blob.parent.name != "blobs" or not _SHA256.fullmatch(blob.name):
        return False
    with blob.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != blob.name:
        raise ModelFileError(f"{path} is damaged (its SHA-256 is wrong); delete {blob} and fetch it again")
    return True


@contextmanager
def progress(folders: list[Path], say: Callable[[str], None], every: float = EVERY) -> Iterator[None]:
    """While the body runs, says now and then how much has come into the folders."""
    done = threading.Event()

    def tell() -> None:
        before = last = _size(folders)
        while not done.wait(every):
            now = _size(folders)
            if now > last:
                say(f"{(now - before) / 1e6:.0f} MB so far")
            last = now

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _stores(cache: Path) -> list[Path]:
    """Where models come to lie: ours, and the hub's."""
    hub = os.environ.get("HF_HOME") or str(Path.home() / ".cache" / "huggingface")
    stores = [cache, Path(hub)]
    return [one for one in stores if not any(one != other and one.is_relative_to(other) for other in stores)]


def _size(folders: list[Path]) -> int:
    """Bytes of the files in the folders, links left out; what goes away meanwhile counts for nothing."""
    total = 0
    for folder in folders:
        for path, _, names in os.walk(folder):
            for name in names:
                try:
                    stat = os.lstat(os.path.join(path, name))
                except FileNotFoundError:
                    continue
                total += stat.st_size
    return total
