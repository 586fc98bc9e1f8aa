"""The caller's side of a grammar process: starts it on first use, and again with its slots when it ends."""

import logging
import mmap
import os
import tempfile
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from pillion.contracts.entries import Constraint
from pillion.grammar.child import Child, End
from pillion.grammar.wire import (
    HEADER,
    PLACES,
    Check,
    Close,
    Compile,
    Made,
    Mask,
    Open,
    width,
)
from pillion.modelfiles import Located

log = logging.getLogger(__name__)

TRIES = 3  # ends in a row that are nobody's fault
_TOO_MUCH = "its grammar takes more time or memory than the server gives"
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


class Ended(Exception):
    """The process ended."""

    def __init__(self, end: End) -> None:
        super().__init__()
        self.end = end


class Grammars:
    """One process for a model's tokens. For one thread, and another for `compile`; `ask` and `answer` take
    turns.
    """

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
        self._child: Child | None = None
        self._told: Child | None = None  # it knows the slots
        self._swap = threading.Lock()  # held while a process starts or ends
        self._hopeless: list[Constraint | None] = [None] * PLACES

    def start(self) -> None:
        """Starts the process before it is needed, so that nobody waits for it. Does not block."""
        self._living()

    def check(self, constraint: Constraint) -> str:
        """Why it cannot be compiled; "" where it can. Blocks. Raises GrammarsGone."""
        suspect = False
        for _ in range(TRIES):
            try:
                why: str = self._exchange(Check(constraint), _TEXT)
                return why
            except Ended as ended:
                if ended.end.slot is not None and (ended.end.overrun or suspect):
                    return "it takes more time or memory to compile than the server gives; simplify it"
                suspect = ended.end.slot is not None
        raise GrammarsGone("the grammar process does not stay up; is the model's tokenizer there?")

    def compile(self, place: int, constraint: Constraint) -> None:
        """Has it compiled, and kept in one of PLACES instead of what was there, while masks are made.

        To open a slot with it is then quick. Blocks until it is done, or cannot be: then such slots fail.
        """
        self._hopeless[place] = None
        suspect = False
        for _ in range(TRIES):
            child = self._living()
            try:
                child.compiling.send(Compile(place, constraint))
                child.compiling.receive()
            except (EOFError, OSError):
                end = self._bury(child)
                if end.place is not None and (end.overrun or suspect):
                    self._hopeless[place] = constraint
                    return
                suspect = end.place is not None
            else:
                return

    # --- slots -------------------------------------------------------------------------------------

    def open(self, slot: int, constraint: Constraint, tokens: Iterable[int]) -> None:
        """A sequence takes the slot; `tokens` were generated so far. It is compiled meanwhile."""
        self._settle()
        state = _Slot(constraint, list(tokens))
        if constraint in self._hopeless:
            state.failed = _TOO_MUCH
        else:
            self._tell(Open(slot, constraint, state.tokens))
        self._slots[slot] = state

    def note(self, slot: int, token: int) -> None:
        """The slot's sequence got one more token."""
        self._slots[slot].tokens.append(token)
        self._notes.append((slot, token))

    def close(self, slots: Iterable[int]) -> None:
        """Forgets these slots; one that is not open is left so."""
        self._settle()
        if gone := [slot for slot in slots if self._slots.pop(slot, None)]:
            self._notes = [note for note in self._notes if note[0] in self._slots]
            self._tell(Close(gone))

    def clear(self) -> None:
        self.close(tuple(self._slots))

    def ask(self, slots: Sequence[int]) -> None:
        """Has the slots' next masks made while the caller does something else."""
        self._settle()
        if asked := [slot for slot in slots if not self._slots[slot].failed]:
            self._asked = asked
            self._ask(asked)

    def answer(self) -> dict[int, Masked]:
        """The masks that were asked for, as they come to stand in the shared memory. Blocks."""
        asked, self._asked = self._asked, []
        suspects: set[int] = set()
        tries = 0
        while asked:
            try:
                made = self._await(_MADE)
            except Ended as ended:
                end = ended.end
                tries += end.slot is None and end.place is None
                if tries == TRIES:
                    self._fail(asked, "the grammar process does not stay up")
                elif end.slot is not None and (end.overrun or end.slot in suspects):
                    self._fail([end.slot], _TOO_MUCH)
                elif end.slot is not None:
                    suspects.add(end.slot)
                # What nobody waits for would be taken for the next answer.
                if asked := [slot for slot in asked if not self._slots[slot].failed]:
                    self._ask(asked)
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
        with self._swap:
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

    def _living(self) -> Child:
        with self._swap:
            if self._child is None:
                self._child = Child(
                    self._located, self._vocab_size, self._seconds, self._shared, self._file.fileno()
                )
            return self._child

    def _bury(self, child: Child) -> End:
        with self._swap:
            end = child.end()
            if self._child is child:
                self._child = None
                log.warning("the grammar process ended (%d); it starts again", end.code)
            return end

    def _open(self) -> Child:
        """The process, which knows all slots."""
        child = self._living()
        if child is not self._told:
            self._told = child
            self._notes.clear()
            for slot, state in self._slots.items():
                if not state.failed:
                    self._send(child, Open(slot, state.constraint, state.tokens))
        return child

    def _ask(self, slots: list[int]) -> None:
        child = self._open()
        notes, self._notes = self._notes, []
        self._send(child, Mask(notes, slots))

    def _tell(self, message: Any) -> None:
        self._send(self._open(), message)

    def _send(self, child: Child, message: Any) -> None:
        """Where the process is gone its next answer finds it out."""
        with suppress(OSError):
            child.link.send(message)

    def _await(self, decoder: "msgspec.msgpack.Decoder[Any]") -> Any:
        """From the process that was told last. Raises Ended."""
        assert self._told is not None
        try:
            return decoder.decode(self._told.link.receive())
        except (EOFError, OSError):
            raise Ended(self._bury(self._told)) from None

    def _exchange(self, message: Any, decoder: "msgspec.msgpack.Decoder[Any]") -> Any:
        self._tell(message)
        return self._await(decoder)
