"""One grammar process as its caller holds it: its sockets, and how it ended."""

import mmap
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass

from pillion.grammar.wire import CURRENT, NOBODY
from pillion.modelfiles import Located

PATIENCE = 30.0  # seconds without an answer; a process that was stopped counts as dead then


@dataclass(frozen=True, slots=True)
class End:
    """In work for `slot`, or for `place`, if that is not None. `overrun`: it took more than its seconds."""

    code: int  # minus the signal that ended it
    slot: int | None
    place: int | None
    overrun: bool


class Child:
    """Its masks lie in `shared`, the memory of the file with this descriptor."""

    def __init__(
        self, located: Located, vocab_size: int, seconds: float, shared: mmap.mmap, file: int
    ) -> None:
        CURRENT.pack_into(shared, 0, NOBODY, NOBODY)
        self._shared = shared
        self._end: End | None = None
        self.link, others = socket.socketpair()
        self.compiling, places = socket.socketpair()  # what comes by it is done beside the rest
        self.link.settimeout(PATIENCE)
        self.compiling.settimeout(PATIENCE)
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
