"""Writes a recording beside the event loop, never holding it up: what comes too fast leaves a gap.

A recording has parts, each a file that can be replayed without the others: it begins with what the core
holds. So the disk that they take is bounded, however long the scheduler lives: the oldest parts go.
"""

import logging
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from pillion import clock
from pillion.config import ConfigError

from .checkpoint import Checkpoint
from .masks import KEY, Masks
from .messages import Command, Event
from .recorded import GOES_ON, MAGIC, SUFFIX, Entry, Header, end, entry, frame

log = logging.getLogger(__name__)

QUEUE = 8192  # events that wait for the writer
WRITE_EVERY = 0.25  # seconds
TOGETHER = 512  # entries of a frame
PARTS = 8  # that the bytes are for
OLDER = 32  # parts that are kept at most
LEAVE_PATIENCE = 2.0  # seconds for what still waits when the process ends
LOST = "events came faster than they could be written"


@dataclass(frozen=True, slots=True)
class Heard:
    event: Event
    now: float
    commands: list[Command]


@dataclass(frozen=True, slots=True)
class Part:
    """Where a new part begins, and why the one before ends."""

    held: Checkpoint
    why: str


class Recorder:
    """From a new core's first event on, until the process ends."""

    def __init__(
        self, folder: Path, header: Header, limit: int, checkpoint: Callable[[], Checkpoint]
    ) -> None:
        """`limit`: bytes of all parts of the replica, older lives' included. `checkpoint`: of the core, as it
        stands when it is called. Raises ConfigError where the folder cannot be used.
        """
        self._folder, self._header = folder, msgspec.structs.replace(header, life=header.started)
        self._limit = limit
        self._checkpoint = checkpoint
        self._waiting: deque[Heard | Part] = deque()
        self._masks = Masks(secrets.token_bytes(KEY), pause=lambda: time.sleep(0))
        self._full = False  # the writer wants a new part
        self._lost = False  # since when nothing is taken in, until the writer has all that came before
        self._leaving = threading.Event()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._open(self._header)
        except OSError as error:
            raise ConfigError(f"--record: cannot write to {folder}: {error.strerror}") from None
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()
        log.info("records to %s", self.path)

    def put(self, event: Event, now: float, commands: list[Command]) -> None:
        """Does not wait. `commands` are the core's answer, which it has just given."""
        if not self._thread.is_alive():
            return
        if self._lost:
            if not self._waiting:
                self._waiting.append(Part(self._checkpoint(), LOST))
                self._lost = False
            return
        if len(self._waiting) >= QUEUE:
            self._lost = True
            return
        self._waiting.append(Heard(event, now, commands))
        if self._full:
            self._full = False
            self._waiting.append(Part(self._checkpoint(), GOES_ON))

    def close(self) -> None:
        """Waits a moment until all is written."""
        self._leaving.set()
        self._thread.join(LEAVE_PATIENCE)

    # --- the writer --------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._head(self._header)
            self._write_all()
            self._end(LOST if self._lost else "the scheduler ended")
        except OSError as error:
            log.warning("the recording %s ends: it cannot be written: %s", self.path.name, error.strerror)
        self._waiting.clear()

    def _write_all(self) -> None:
        """Until the process ends. Raises OSError."""
        while True:
            leaving = self._leaving.wait(WRITE_EVERY)
            while self._waiting:
                batch: list[Heard] = []
                while self._waiting and len(batch) < TOGETHER and isinstance(self._waiting[0], Heard):
                    batch.append(self._waiting.popleft())  # type: ignore[arg-type]
                if batch:
                    self._write([self._entry(heard) for heard in batch])
                else:
                    self._next(self._waiting.popleft())  # type: ignore[arg-type]
            if leaving:
                return

    def _next(self, part: Part) -> None:
        """Raises OSError."""
        self._end(part.why)
        if part.why == LOST:
            log.warning("the recording %s has a gap behind it: %s", self.path.name, LOST)
        self._header = msgspec.structs.replace(
            self._header, started=clock.wall(), part=self._header.part + 1, core=self._masks.begun(part.held)
        )
        self._open(self._header)
        self._head(self._header)

    def _open(self, header: Header) -> None:
        """Opens the file of a part. Raises OSError."""
        prefix = f"scheduler-{header.replica}-"
        _make_room(self._folder, prefix, self._limit - self._limit // PARTS)
        number = int(header.started * 1000)
        while (path := self._folder / f"{prefix}{number}{SUFFIX}").exists():
            number += 1
        self.path = path
        self._file: BinaryIO = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        self._written, self._asked = 0, False

    def _head(self, header: Header) -> None:
        """Of the file just opened, which goes if it cannot be had. Raises OSError."""
        try:
            self._file.write(MAGIC + frame(header))
            self._file.flush()
        except OSError:
            self.path.unlink(missing_ok=True)
            raise

    def _end(self, why: str) -> None:
        """Raises OSError."""
        with self._file:
            self._write([end(clock.monotonic(), why)])

    def _entry(self, heard: Heard) -> Entry:
        masked = self._masks.masked(heard.event, heard.commands)
        return entry(masked, heard.now, heard.commands)

    def _write(self, entries: list[Entry]) -> None:
        self._written += self._file.write(frame(entries))
        self._file.flush()
        if self._written >= self._limit // PARTS and not self._asked:
            self._full = self._asked = True


def _make_room(folder: Path, prefix: str, most: int) -> None:
    """Raises OSError."""
    kept, own = 0, [path for path in folder.glob(f"{prefix}*{SUFFIX}") if path.stem[len(prefix) :].isdigit()]
    for index, path in enumerate(sorted(own, reverse=True)):
        kept += path.stat().st_size
        if kept > most or index >= OLDER:
            path.unlink()
