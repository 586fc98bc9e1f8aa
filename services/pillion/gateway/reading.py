"""How a choice's text is read: as it is, or told apart into reasoning, content and tool calls. Pure."""

from typing import Protocol

from pillion.gateway import thinking
from pillion.gateway.calls import FORMS
from pillion.gateway.protocol.request import Output
from pillion.gateway.source import Part, Reader, Source, Steps, Text


class Reading(Protocol):
    """What is needed of `pillion.gateway.source.Reader`."""

    @property
    def calls(self) -> int: ...

    @property
    def broken(self) -> bool: ...

    @property
    def thinking(self) -> bool: ...

    @property
    def over(self) -> bool: ...

    def push(self, text: str, /) -> tuple[Part, ...]: ...

    def finish(self) -> tuple[Part, ...]: ...


class Verbatim:
    """All is content."""

    calls, broken, thinking, over = 0, False, False, False

    def push(self, text: str) -> tuple[Part, ...]:
        return (Text("content", text),) if text else ()

    def finish(self) -> tuple[Part, ...]:
        return ()


def reader(spec: Output) -> Reading:
    """A new one, for one choice."""
    if not (spec.calls or spec.thinks):
        return Verbatim()

    def parser(source: Source) -> Steps[None]:
        if spec.thinks:
            yield from thinking.read(source, spec.thinking)
        if spec.calls:
            yield from FORMS[spec.calls.form].read(source, spec.calls)
        else:
            yield from source.rest()

    return Reader(parser, only_calls=spec.calls is not None and spec.calls.certain)


def marks(spec: Output) -> tuple[str, ...]:
    """Texts that are read also where they are control tokens, which else have no text."""
    calls = FORMS[spec.calls.form].MARKS if spec.calls else ()
    return calls + (thinking.MARKS if spec.thinks else ())
