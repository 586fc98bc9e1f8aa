"""One grammar process as its caller holds it: its sockets, and how it ended."""

import mmap
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import Any

from pillion.grammar.wire import CURRENT, NOBODY, receive, send
from pillion.modelfiles import Located

PATIENCE = 30.0  # seconds without an answer; a process that was stopped counts as dead then


@dataclass(frozen=True, slots=True)
class End:
    """In work for `slot`, or for `place`, if that is not None. `overrun`: it took more than its seconds."""

    code: int  # minus the signal that ended it
    slot: int | None
    place: int | None
    overrun: bool


class Line:
    """A socket that one thread uses and any may close, but never while it is in use: its number may at once
    be another socket's, and who has just begun to wait would wait there.
    """

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._using = threading.Lock()

    def send(self, message: Any) -> None:
        """Raises OSError where the other side is gone, or this one closed."""
        with self._using:
            send(self._link, message)

    def receive(self) -> bytes:
        """One frame's payload. Raises EOFError where the other side is gone, and OSError."""
        with self._using:
            return receive(self._link)

    def close(self) -> None:
        """Waits for who uses it: where the other side is gone, that takes no time."""
        with self._using:
            self._link.close()


class Child:
    """Its masks lie in `shared`, the memory of the file with this descriptor."""

    def __init__(
        self, located: Located, vocab_size: int, seconds: float, shared: mmap.mmap, file: int
    ) -> None:
        CURRENT.pack_into(shared, 0, NOBODY, NOBODY)
        self._shared = shared
        self._end: End | None = None
        link, others = socket.socketpair()
        compiling, places = socket.socketpair()
        link.settimeout(PATIENCE)
        compiling.settimeout(PATIENCE)
        self.link = Line(link)
        self.compiling = Line(compiling)  # what comes by it is done beside the rest
        with others, places:
            passed = others.fileno(), places.fileno(), file
            arguments = (located.kind, located.path, vocab_size, seconds, *passed)
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "pillion.grammar.worker", *map(str, arguments)],
                pass_fds=passed,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # what a panic says there has clients' text in it
            )

    def end(self) -> End:
        """Ends it, if it has not ended yet."""
        if self._end is None:
            if self.process.poll() is None:
                self.process.kill()
            code = self.process.wait()
            self.link.close()
            self.compiling.close()
            slot, place = (None if word == NOBODY else word for word in CURRENT.unpack_from(self._shared))
            if code == -signal.SIGPROF:
                place = None
            elif place is not None:  # a mask takes moments of the time that a grammar takes
                slot = None
            self._end = End(code, slot, place, code in (-signal.SIGPROF, -signal.SIGVTALRM))
        return self._end
