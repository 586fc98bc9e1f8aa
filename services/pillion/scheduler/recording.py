"""Writes a recording beside the event loop, never holding it up: what comes too fast ends it, with a mark."""

import logging
import os
import secrets
import threading
import time
from collections import deque
from pathlib import Path

from pillion import clock
from pillion.config import ConfigError

from .masks import KEY, Masks
from .messages import Command, Event
from .recorded import MAGIC, SUFFIX, Entry, Header, end, entry, frame

log = logging.getLogger(__name__)

QUEUE = 8192  # events that wait for the writer
WRITE_EVERY = 0.25  # seconds
TOGETHER = 512  # entries of a frame
OLDER = 32  # recordings that are kept at most
LEAVE_PATIENCE = 2.0  # seconds for what still waits when the process ends

Heard = tuple[Event, float, list[Command]]


class Recorder:
    """One file, from a new core's first event on. It ends with the process, or when the file is full."""

    def __init__(self, folder: Path, header: Header, limit: int) -> None:
        """`limit`: bytes of a file. Older files of the replica go, but for the latest that fit in as many
        bytes again. Raises ConfigError where the folder cannot be used.
        """
        self._limit = limit
        self._heard: deque[Heard] = deque()
        self._masks = Masks(secrets.token_bytes(KEY), pause=lambda: time.sleep(0))
        self._dropped = False
        self._leaving = threading.Event()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make_room(folder, f"scheduler-{header.replica}-", limit)
            self.path = folder / f"scheduler-{header.replica}-{int(header.started * 1000)}{SUFFIX}"
            self._file = os.fdopen(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
            self._written = self._file.write(MAGIC) + self._file.write(frame(header))
            self._file.flush()
        except OSError as error:
            raise ConfigError(f"--record: cannot write to {folder}: {error.strerror}") from None
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()
        log.info("records to %s", self.path)

    def put(self, event: Event, now: float, commands: list[Command]) -> None:
        """Does not wait. With one event lost the rest says nothing, so then the recording ends."""
        if self._dropped or not self._thread.is_alive():
            return
        if len(self._heard) >= QUEUE:
            self._dropped = True
            return
        self._heard.append((event, now, commands))

    def close(self) -> None:
        """Waits a moment until all is written."""
        self._leaving.set()
        self._thread.join(LEAVE_PATIENCE)

    def _run(self) -> None:
        try:
            with self._file:
                why = self._write_all()
                self._write([end(clock.monotonic(), why)])
        except OSError as error:
            why = f"it cannot be written: {error.strerror}"
        if not self._leaving.is_set():
            log.warning("the recording %s ends: %s", self.path.name, why)
        self._heard.clear()

    def _write_all(self) -> str:
        """Until the end, of which it says why it came. Raises OSError."""
        while True:
            leaving = self._leaving.wait(WRITE_EVERY)
            dropped = self._dropped  # before the queue is looked at: all that is in it came before
            while self._heard:
                batch = [self._heard.popleft() for _ in range(min(TOGETHER, len(self._heard)))]
                self._write([self._entry(*heard) for heard in batch])
                if self._written >= self._limit:
                    return f"the file is full (--record-bytes {self._limit})"
            if dropped:
                return "events came faster than they could be written"
            if leaving:
                return "the scheduler ended"

    def _entry(self, event: Event, now: float, commands: list[Command]) -> Entry:
        return entry(self._masks.masked(event, commands), now, commands)

    def _write(self, entries: list[Entry]) -> None:
        self._written += self._file.write(frame(entries))
        self._file.flush()


def _make_room(folder: Path, prefix: str, most: int) -> None:
    """Raises OSError."""
    kept, own = 0, [path for path in folder.glob(f"{prefix}*{SUFFIX}") if path.stem[len(prefix) :].isdigit()]
    for index, path in enumerate(sorted(own, reverse=True)):
        kept += path.stat().st_size
        if kept > most or index >= OLDER:
            path.unlink()
