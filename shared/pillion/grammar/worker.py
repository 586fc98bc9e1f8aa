"""The process that compiles grammars and makes masks: what hangs or bursts here takes nobody else down.

Each piece of work has so many seconds of the processor, and the process so much memory; the system ends it
where it takes more. Its caller then knows from the shared memory whose work that was.

Masks are made in one thread, what is to be ready for later is compiled in another: llguidance lets go of the
interpreter meanwhile. For one the system counts all of the process's time, for the other that outside the
kernel: each has a timer and a signal of its own.
"""

import mmap
import os
import resource
import signal
import socket
import struct
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from pillion.contracts.entries import Constraint
from pillion.grammar.source import GrammarError, grammar, words
from pillion.grammar.wire import (
    HEADER,
    NOBODY,
    PLACES,
    Check,
    Close,
    Compile,
    Made,
    Mask,
    Open,
    receive,
    send,
    width,
)
from pillion.modelfiles import Located
from pillion.modelfiles.vocabulary import Vocabulary, vocabulary

MEMORY = 2 << 30  # bytes of address space beyond what the tokenizer takes
KEPT = 64  # compiled grammars, beside those in places
STACK = 16 << 20  # bytes, of the thread that compiles: grammars may be nested deeply
_LIMITS = LLParserLimits(max_lexer_states=50_000, precompute_large_lexemes=False, verbose_errors=False)
_DEAD_END = "NoExtensionBias"  # the text would have to go on with what the vocabulary has no token for
_WORD = struct.Struct("<q")
_SLOT_AT, _PLACE_AT = 0, 8  # in the header
_COMPILE = msgspec.msgpack.Decoder(Compile)
_MESSAGES = msgspec.msgpack.Decoder(Check | Open | Close | Mask)


class _Tokens:
    """A vocabulary in the form that LLTokenizer asks for."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, known: Vocabulary, vocab_size: int) -> None:
        pieces = known.pieces[:vocab_size]
        self.tokens = [*pieces, *[b""] * (vocab_size - len(pieces))]
        self.special_token_ids = [token for token in {*known.special, *known.ends} if token < vocab_size]
        self.eos_token_id = known.ends[0]

    def __call__(self, text: object) -> list[int]:
        raise NotImplementedError("no grammar here forces tokens")


class Grammars:
    """Compiled grammars by content, and the state of each slot's text."""

    def __init__(self, known: Vocabulary, vocab_size: int) -> None:
        ends = [token for token in known.ends if token < vocab_size]
        self._tokenizer = LLTokenizer(_Tokens(known, vocab_size), n_vocab=vocab_size, eos_token=ends)  # type: ignore[arg-type]
        self._nothing = bytes(width(vocab_size))
        self._kept: OrderedDict[Constraint, LLMatcher] = OrderedDict()
        self._places: list[tuple[Constraint, LLMatcher] | None] = [None] * PLACES
        self._slots: dict[int, LLMatcher | str] = {}

    def check(self, constraint: Constraint) -> str:
        """Why it cannot be compiled, or lets no text begin; "" where it can."""
        try:
            error = self._compile(constraint).get_error()
            return words(constraint, error, self._error) if error else ""
        except GrammarError as raised:
            return str(raised)
        except RecursionError:
            return "it is nested too deeply"

    def compile(self, place: int, constraint: Constraint) -> None:
        """What has an error is left out: who opens it is told. For another thread than all else here."""
        found = self._placed(constraint)
        self._places[place] = None
        try:
            found = found or self._new(constraint)
        except GrammarError:
            return
        self._places[place] = constraint, found

    def open(self, slot: int, constraint: Constraint, tokens: list[int]) -> None:
        try:
            matcher = self._compile(constraint).deep_copy()
        except GrammarError as error:
            self._slots[slot] = str(error)
            return
        matcher.consume_tokens(tokens)
        self._slots[slot] = matcher

    def note(self, slot: int, token: int) -> None:
        match self._slots.get(slot):
            case LLMatcher() as matcher:
                matcher.consume_token(token)

    def close(self, slot: int) -> None:
        self._slots.pop(slot, None)

    def mask(self, slot: int) -> tuple[bytes, Made]:
        matcher = self._slots[slot]
        if isinstance(matcher, str):
            return b"", Made(False, matcher)
        bits = b"" if matcher.is_error() else matcher.compute_bitmask()
        error = matcher.get_error()
        if error.startswith(_DEAD_END):
            return self._nothing, Made(False)
        if error:
            return b"", Made(False, error.partition("\n")[0])
        return bits, Made(matcher.is_accepting())

    def _compile(self, constraint: Constraint) -> LLMatcher:
        """In its first state, with its first mask made: where nothing can follow that is an error too."""
        if (placed := self._placed(constraint)) is not None:
            return placed
        known = self._kept.get(constraint)
        if known is None:
            known = self._kept[constraint] = self._new(constraint)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(constraint)
        return known

    def _placed(self, constraint: Constraint) -> LLMatcher | None:
        return next((held[1] for held in self._places if held and held[0] == constraint), None)

    def _new(self, constraint: Constraint) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, grammar(constraint), limits=_LIMITS, log_level=0)
        if not matcher.is_error():
            matcher.compute_bitmask()
        return matcher

    def _error(self, constraint: Constraint) -> str:
        return LLMatcher(self._tokenizer, grammar(constraint), limits=_LIMITS, log_level=0).get_error()


def serve(caller: socket.socket, grammars: Grammars, shared: mmap.mmap, seconds: float, wide: int) -> None:
    """Works until the caller is gone."""

    @contextmanager
    def work(slot: int) -> Iterator[None]:
        _WORD.pack_into(shared, _SLOT_AT, slot)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        yield
        signal.setitimer(signal.ITIMER_PROF, 0)
        _WORD.pack_into(shared, _SLOT_AT, NOBODY)

    while True:
        match _MESSAGES.decode(receive(caller)):
            case Check(constraint):
                with work(0):
                    error = grammars.check(constraint)
                send(caller, error)
            case Open(slot, constraint, tokens):
                with work(slot):
                    grammars.open(slot, constraint, tokens)
            case Close(slots):
                for slot in slots:
                    grammars.close(slot)
            case Mask(notes, slots):
                for slot, token in notes:
                    with work(slot):
                        grammars.note(slot, token)
                made = []
                for slot in slots:
                    with work(slot):
                        bits, verdict = grammars.mask(slot)
                    at, bits = (
                        HEADER + slot * wide,
                        bits[:wide],
                    )  # it may have a word more than there are tokens for
                    shared[at : at + len(bits)] = bits
                    made.append(verdict)
                send(caller, made)


def serve_places(caller: socket.socket, grammars: Grammars, shared: mmap.mmap, seconds: float) -> None:
    """Compiles until the caller is gone, and ends the process."""
    try:
        while True:
            wanted = _COMPILE.decode(receive(caller))
            _WORD.pack_into(shared, _PLACE_AT, wanted.place)
            signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
            grammars.compile(wanted.place, wanted.constraint)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            _WORD.pack_into(shared, _PLACE_AT, NOBODY)
            send(caller, True)
    finally:
        os._exit(0)


def main(kind: str, path: str, vocab_size: str, seconds: str, link: str, compiling: str, memory: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # they are meant for the caller, whose end is this one's
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    size = int(vocab_size)
    grammars = Grammars(vocabulary(Located(kind, Path(path), path)), size)  # type: ignore[arg-type]
    pages = Path("/proc/self/statm")
    taken = int(pages.read_text().split()[0]) * mmap.PAGESIZE if pages.exists() else 0
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
    with socket.socket(fileno=int(link)) as caller, mmap.mmap(int(memory), 0) as shared:
        others = socket.socket(fileno=int(compiling))
        threading.stack_size(STACK)
        places = others, grammars, shared, float(seconds)
        threading.Thread(target=serve_places, args=places, daemon=True).start()
        try:
            serve(caller, grammars, shared, float(seconds), width(size))
        except (EOFError, ConnectionError):
            os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
