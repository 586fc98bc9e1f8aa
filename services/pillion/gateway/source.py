"""A choice's text as it comes, for parsers that tell content, reasoning and tool calls apart. Pure.

A parser is a generator over a `Source`: it reads as if the whole text were there, and is suspended where that
has not come yet. So what it tells depends on the text only, not on how it was cut into pieces. What may still
turn out to be one thing or the other is held back.
"""

import re
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Literal, TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
"""A part of a parser; suspended, it waits for more text."""

Kind = Literal["content", "reasoning"]

# What JSON has outside of strings and brackets, and what inside of strings needs no look.
_PLAIN = re.compile(r"[ \t\r\n0-9A-Za-z.+\-:,]*")
_SCALAR = re.compile(r"[0-9A-Za-z.+\-]*")
_LETTERS = re.compile(r'[^"\\\x00-\x1f]*')
_SPACE = re.compile(r"\s*")


class NoCall(Exception):
    """What was read is no tool call after all."""


@dataclass(frozen=True, slots=True)
class Text:
    """More of the answer itself, or of the reasoning before it."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """A tool call begins: the choice's `index`-th."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the arguments' JSON of a call that has begun."""

    index: int
    text: str


Part = Text | Called | Arguments


class Source:
    """What is read and not told yet is held; `content` and the like tell it.

    Blanks between a text and a call, or at the end behind a call, belong to neither and are left out.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.thinking = False  # what comes next is reasoning; for the parser to set
        self.broken = False  # a call was told whose arguments are no JSON object
        self._parts: list[Part] = []
        self._text = ""  # what is not told
        self._at = 0  # how much of it is read
        self._ended = False
        self._blank = ""  # at the end of what was told
        self._kind: Kind = "content"
        self._behind_call = False
        self._streams = False  # arguments are told as they are read
        self._arguments = ""  # what of them was told

    # --- for the one who has the text

    def add(self, text: str) -> None:
        self._text += text

    def end(self) -> None:
        self._ended = True

    def told(self) -> tuple[Part, ...]:
        """What is new, pieces of one thing joined."""
        parts: list[Part] = []
        for part in self._parts:
            match parts[-1] if parts else None, part:
                case Text(kind, before), Text(same, text) if kind == same:
                    parts[-1] = Text(kind, before + text)
                case Arguments(index, before), Arguments(same, text) if index == same:
                    parts[-1] = Arguments(index, before + text)
                case _:
                    parts.append(part)
        self._parts = []
        return tuple(parts)

    def close(self) -> None:
        """The parser has ended: blanks that wait are a text's, unless a call was the last."""
        if self._blank and not self._behind_call:
            self._parts.append(Text(self._kind, self._blank))
        self._blank = ""

    # --- reading

    def more(self) -> Steps[bool]:
        """Waits for more text; False at its end."""
        if self._streams:
            self._tell_arguments()
        known = len(self._text)
        while len(self._text) == known and not self._ended:
            yield
        return len(self._text) > known

    def until(self, mark: str, kind: Kind = "content") -> Steps[bool]:
        """Tells all text before `mark`, and reads that; False where it does not come."""
        while True:
            found = self._text.find(mark)
            if found >= 0:
                self._tell(kind, found)
                self._at = len(mark)
                return True
            self._tell(kind, len(self._text) - _overlap(self._text, mark))
            if not (yield from self.more()):
                self._tell(kind, len(self._text))
                return False

    def rest(self, kind: Kind = "content") -> Steps[None]:
        """Tells all text to its end, blanks too."""
        while True:
            self._tell(kind, len(self._text))
            self.close()
            if not (yield from self.more()):
                return

    def space(self) -> Steps[None]:
        """Reads blanks, if there are any."""
        while True:
            self._skip(_SPACE)
            if self._at < len(self._text) or not (yield from self.more()):
                return

    def one_of(self, *literals: str) -> Steps[str]:
        """Reads that which comes next of `literals`; "" for none. None of them may begin another."""
        while True:
            rest = self._text[self._at :]
            for literal in literals:
                if rest.startswith(literal):
                    self._at += len(literal)
                    return literal
            if not any(literal.startswith(rest) for literal in literals) or not (yield from self.more()):
                return ""

    def need(self, literal: str) -> Steps[None]:
        """Raises NoCall where it does not come next."""
        if not (yield from self.one_of(literal)):
            raise NoCall

    def run(self, pattern: re.Pattern[str]) -> Steps[str]:
        """Reads as much as `pattern`, of one kind of characters, matches."""
        start = self._at
        while True:
            self._skip(pattern)
            if self._at < len(self._text) or not (yield from self.more()):
                return self._text[start : self._at]

    def peek(self) -> Steps[str]:
        """The next character, not read yet; "" at the end."""
        if self._at == len(self._text):
            yield from self.more()
        return self._text[self._at : self._at + 1]

    def begins_object(self) -> Steps[bool]:
        """Whether a JSON object could come next; nothing is read."""
        at = self._at
        yield from self.one_of("{")
        begun = self._at > at
        yield from self.space()
        begins = begun and (yield from self.peek()) in ('"', "}")
        self._at = at
        return begins

    def value(self) -> Steps[str]:
        """Reads one JSON value, of which only strings and brackets are looked at. Raises NoCall."""
        start = self._at
        yield from self._value()
        return self._text[start : self._at]

    def _value(self) -> Steps[None]:
        depth = 0
        while True:
            match (yield from self.peek()):
                case '"':
                    yield from self._string()
                case "{" | "[":
                    self._at += 1
                    depth += 1
                case "}" | "]" if depth:
                    self._at += 1
                    depth -= 1
                case character:
                    plain = _PLAIN if depth else _SCALAR
                    if not (character and plain.fullmatch(character)):
                        raise NoCall
                    yield from self.run(plain)
            if not depth:
                return

    def _string(self) -> Steps[None]:
        self._at += 1
        while True:
            self._skip(_LETTERS)
            match (yield from self.peek()):
                case '"':
                    self._at += 1
                    return
                case "\\":
                    if self._at + 1 == len(self._text) and not (yield from self.more()):
                        raise NoCall
                    self._at += 2
                case "":
                    raise NoCall
                case character if character < " ":
                    raise NoCall

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self._text, self._at)
        assert match is not None, "it matches nothing too"
        self._at = match.end()

    # --- telling

    def content(self) -> None:
        """What was read is a text like any other; of a call that has begun, the arguments' end."""
        if self._streams:
            self._at = len(self._text) if self._ended else self._at
            self._tell_arguments()
            self._streams, self.broken = False, True
        else:
            self._tell("content", self._at)

    def again(self) -> None:
        """What was read is to be read once more."""
        self._at = 0

    def leave_out(self) -> None:
        """What was read is told to nobody, nor the blanks before it."""
        self._drop()

    def call(self, name: str, arguments: str) -> None:
        """What was read is a call."""
        self._begin(name)
        self._parts.append(Arguments(self.calls - 1, arguments))

    def stream(self, name: str) -> Steps[str]:
        """What was read begins a call, whose arguments, one JSON value, come next and are told as they come.

        Gives them. Raises NoCall where they do not end.
        """
        self._begin(name)
        self._streams, self._arguments = True, ""
        yield from self._value()
        self._tell_arguments()
        self._streams = False
        return self._arguments

    def _begin(self, name: str) -> None:
        self._drop()
        self._behind_call = True
        self._parts.append(Called(self.calls, name))
        self.calls += 1

    def _drop(self) -> None:
        self._blank = ""
        self._text, self._at = self._text[self._at :], 0

    def _tell_arguments(self) -> None:
        if self._at:
            self._parts.append(Arguments(self.calls - 1, self._text[: self._at]))
            self._arguments += self._text[: self._at]
            self._text, self._at = self._text[self._at :], 0

    def _tell(self, kind: Kind, end: int) -> None:
        if kind != self._kind:
            self.close()
        text = self._blank + self._text[:end]
        self._text, self._at, self._kind = self._text[end:], 0, kind
        whole = text.rstrip()
        self._blank = text[len(whole) :]
        if whole:
            self._behind_call = False
            self._parts.append(Text(kind, whole))


class Reader:
    """Runs a parser over one choice's text."""

    def __init__(self, parser: Callable[[Source], Steps[None]], only_calls: bool = False) -> None:
        """`parser` may end before the text does: the rest of it is then nobody's. `only_calls`: there is no
        content; what is held at the end is a call that was cut off before its arguments.
        """
        self._only_calls = only_calls
        self._source = Source()
        self._steps = parser(self._source)
        self.over = False
        self._advance()

    @property
    def calls(self) -> int:
        """Tool calls so far."""
        return self._source.calls

    @property
    def broken(self) -> bool:
        """Whether one of them cannot be read."""
        return self._source.broken

    @property
    def thinking(self) -> bool:
        return self._source.thinking

    def push(self, text: str) -> tuple[Part, ...]:
        """What is certain of the text so far, and was not told before."""
        if self.over or not text:
            return ()
        self._source.add(text)
        self._advance()
        return self._source.told()

    def finish(self) -> tuple[Part, ...]:
        """At the text's end: what was held back."""
        if self.over:
            return ()
        self._source.end()
        self._advance()
        told = self._source.told()
        if not self._only_calls:
            return told
        return tuple(part for part in told if not (isinstance(part, Text) and part.kind == "content"))

    def _advance(self) -> None:
        try:
            next(self._steps)
        except StopIteration:
            self._source.close()
            self.over = True


def _overlap(text: str, mark: str) -> int:
    """Characters at the end of `text` that begin `mark`."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
