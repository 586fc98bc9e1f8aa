"""The caller's side of a grammar process: starts it on first use, and again with its slots when it ends."""

import logging
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pillion.contracts.entries import Constraint
from pillion.grammar.wire import (
    CURRENT,
    HEADER,
    NOBODY,
    Check,
    Close,
    Made,
    Mask,
    Open,
    receive,
    send,
    width,
)
from pillion.modelfiles import Located

log = logging.getLogger(__name__)

PATIENCE = 30.0  # seconds without an answer; a process that was stopped counts as dead then
TRIES = 3  # ends in a row that are nobody's fault
_MADE = msgspec.msgpack.Decoder(list[Made])
_TEXT = msgspec.msgpack.Decoder(str)


@dataclass(frozen=True, slots=True)
class Masked:
    """`bits`: one a token, lowest first, valid until the next `ask`. `error`: there is no mask, and why."""

    bits: memoryview
    accepting: bool = False  # the text may end here
    error: str = ""


@dataclass(slots=True)
class _Slot:
    constraint: Constraint
    tokens: list[int]
    failed: str = ""


class GrammarsGone(RuntimeError):
    """The process cannot be kept up, whatever is asked of it."""


class _Ended(Exception):
    """The process ended, in work for `slot` if that is not None. `overrun`: it took more than its seconds."""

    def __init__(self, slot: int | None, overrun: bool) -> None:
        super().__init__()
        self.slot = slot
        self.overrun = overrun


@dataclass(slots=True)
class _Child:
    process: subprocess.Popen[bytes]
    link: socket.socket
    ended: bool = field(default=False)

    def end(self) -> int:
        """Its exit code; minus the signal that ended it."""
        self.ended = True
        self.link.close()
        if self.process.poll() is None:
            self.process.kill()
        return self.process.wait()


class Grammars:
    """One process for a model's tokens. For one thread; `ask` and `answer` take turns."""

    def __init__(self, located: Located, vocab_size: int, slots: int = 0, seconds: float = 2.0) -> None:
        """`seconds` of the processor for each piece of work: a grammar to compile, a mask to make."""
        self._located = located
        self._vocab_size = vocab_size
        self._seconds = seconds
        self._width = width(vocab_size)
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - the masks' memory, as long as this lives
        os.ftruncate(self._file.fileno(), HEADER + slots * self._width)
        self._shared = mmap.mmap(self._file.fileno(), 0)
        self._masks = memoryview(self._shared)
        self._slots: dict[int, _Slot] = {}
        self._notes: list[tuple[int, int]] = []
        self._asked: list[int] = []
        self._child: _Child | None = None

    def start(self) -> None:
        """Starts the process before it is needed, so that nobody waits for it. Does not block."""
        if self._child is None:
            self._start()

    def check(self, constraint: Constraint) -> str:
        """Why it cannot be compiled; "" where it can. Blocks. Raises GrammarsGone."""
        suspect = False
        for _ in range(TRIES):
            try:
                why: str = self._exchange(Check(constraint), _TEXT)
                return why
            except _Ended as end:
                if end.slot is not None and (end.overrun or suspect):
                    return "it takes more time or memory to compile than the server gives; simplify it"
                suspect = end.slot is not None
        raise GrammarsGone("the grammar process does not stay up; is the model's tokenizer there?")

    # --- slots -------------------------------------------------------------------------------------

    def open(self, slot: int, constraint: Constraint, tokens: Iterable[int]) -> None:
        """A sequence takes the slot; `tokens` were generated so far. It is compiled meanwhile."""
        self._settle()
        self._slots[slot] = state = _Slot(constraint, list(tokens))
        if self._child is None:
            self._start()
        else:
            self._tell(Open(slot, constraint, state.tokens))

    def note(self, slot: int, token: int) -> None:
        """The slot's sequence got one more token."""
        self._slots[slot].tokens.append(token)
        self._notes.append((slot, token))

    def close(self, slots: Iterable[int]) -> None:
        """Forgets these slots; one that is not open is left so."""
        gone = [slot for slot in slots if self._slots.pop(slot, None)]
        if gone:
            self._settle()
            self._notes = [note for note in self._notes if note[0] in self._slots]
            self._tell(Close(gone))

    def clear(self) -> None:
        self.close(tuple(self._slots))

    def ask(self, slots: Sequence[int]) -> None:
        """Has the slots' next masks made while the caller does something else."""
        self._settle()
        if asked := [slot for slot in slots if not self._slots[slot].failed]:
            self._asked = asked
            notes, self._notes = self._notes, []
            self._tell(Mask(notes, asked))

    def answer(self) -> dict[int, Masked]:
        """The masks that were asked for, as they come to stand in the shared memory. Blocks."""
        asked, self._asked = self._asked, []
        suspects: set[int] = set()
        tries = 0
        while asked:
            try:
                made = self._await(_MADE)
            except _Ended as end:
                tries += end.slot is None
                if tries == TRIES:
                    self._fail(asked, "the grammar process does not stay up")
                elif end.slot is not None and (end.overrun or end.slot in suspects):
                    self._fail([end.slot], "its grammar takes more time or memory than the server gives")
                elif end.slot is not None:
                    suspects.add(end.slot)
                # What nobody waits for would be taken for the next answer.
                if asked := [slot for slot in asked if not self._slots[slot].failed]:
                    self._tell(Mask([], asked))
            else:
                return {slot: self._masked(slot, one) for slot, one in zip(asked, made, strict=True)}
        return {}

    def _fail(self, slots: Iterable[int], why: str) -> None:
        for slot in slots:
            self._slots[slot].failed = why

    def why(self, slot: int) -> str:
        """Why the slot gets no masks any more; "" where it does."""
        return self._slots[slot].failed

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        return self._child.process.pid if self._child is not None else None

    def end(self) -> None:
        """Ends the process; it would also end with the caller's."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def _masked(self, slot: int, made: Made) -> Masked:
        if made.error:
            return Masked(self._masks[:0], error=made.error)
        at = HEADER + slot * self._width
        return Masked(self._masks[at : at + self._width], made.accepting)

    # --- the process -------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Nothing is sent while an answer is due: what a step that raised had asked for is dropped."""
        if self._asked:
            self.answer()

    def _start(self) -> None:
        CURRENT.pack_into(self._shared, 0, NOBODY)
        own, others = socket.socketpair()
        own.settimeout(PATIENCE)
        located, shared = self._located, self._file.fileno()
        with others:
            arguments = (located.kind, located.path, self._vocab_size, self._seconds, others.fileno(), shared)
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "pillion.grammar.worker", *map(str, arguments)],
                pass_fds=(others.fileno(), shared),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # what a panic says there has clients' text in it
            )
        self._child = _Child(process, own)
        self._notes.clear()
        for slot, state in self._slots.items():
            if not state.failed:
                self._tell(Open(slot, state.constraint, state.tokens))

    def _tell(self, message: Any) -> None:
        """Where the process is gone its next answer finds it out."""
        if self._child is None:
            self._start()
        assert self._child is not None
        if not self._child.ended:
            try:
                send(self._child.link, message)
            except OSError:
                self._child.ended = True

    def _await(self, decoder: "msgspec.msgpack.Decoder[Any]") -> Any:
        assert self._child is not None
        try:
            if self._child.ended:
                raise EOFError
            return decoder.decode(receive(self._child.link))
        except (EOFError, OSError):
            code = self._child.end()
            self._child = None
            log.warning("the grammar process ended (%d); it starts again", code)
            (slot,) = CURRENT.unpack_from(self._shared)
            raise _Ended(None if slot == NOBODY else slot, code == -signal.SIGPROF) from None

    def _exchange(self, message: Any, decoder: "msgspec.msgpack.Decoder[Any]") -> Any:
        self._tell(message)
        return self._await(decoder)
