"""A call as a JSON object: a function's name, and its arguments under one of two keys."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from pillion.gateway.protocol.request import Calls
from pillion.gateway.source import NoCall, Source, Steps

T = TypeVar("T")

_ARGUMENTS = ("arguments", "parameters")


def read(source: Source, calls: Calls) -> Steps[None]:
    """Reads the object that comes next, and tells the call. Raises NoCall."""
    name, given, streamed = "", "", False
    yield from source.need("{")
    while True:
        yield from source.space()
        key = _decoded((yield from source.value()), str)
        yield from source.space()
        yield from source.need(":")
        yield from source.space()
        if key in _ARGUMENTS and not (given or streamed) and (yield from _early(source, calls, name)):
            yield from _stream(source, name)
            streamed = True
        else:
            value = yield from source.value()
            if key == "name":
                name = name or _decoded(value, str)
            elif key in _ARGUMENTS and value != "null":
                given = given or value
        yield from source.space()
        match (yield from source.one_of(",", "}")):
            case "}":
                break
            case "" if streamed:  # its arguments are whole, and told
                source.again()
                return
            case "":
                raise NoCall
    if streamed:
        source.leave_out()
    else:
        _tell(source, calls, name, given or "{}")


def marked(
    source: Source, calls: Calls, mark: str, call: Callable[[Source, Calls], Steps[None]]
) -> Steps[None]:
    """Reads what stands behind each `mark`, by `call`, which raises NoCall for what is none."""
    while (yield from source.until(mark)):
        try:
            yield from source.space()
            yield from call(source, calls)
        except NoCall:
            source.content()
        if calls.single and source.calls:
            return


def arguments(source: Source, calls: Calls, name: str) -> Steps[None]:
    """Reads the arguments of a call that was named before them, and tells it. Raises NoCall."""
    if (yield from _early(source, calls, name)):
        yield from _stream(source, name)
    else:
        _tell(source, calls, name, (yield from source.value()))


def _early(source: Source, calls: Calls, name: str) -> Steps[bool]:
    """Whether what comes next is the arguments, to be told as they come."""
    if name not in calls.names:
        return False
    if calls.certain:
        return (yield from source.peek()) == "{"
    return calls.early and (yield from source.begins_object())


def _stream(source: Source, name: str) -> Steps[None]:
    given = yield from source.stream(name)
    try:
        _decoded(given, dict)
    except NoCall:
        source.broken = True  # it is too late to make them content


def _tell(source: Source, calls: Calls, name: str, given: str) -> None:
    if name not in calls.names:
        raise NoCall
    _decoded(given, dict)
    source.call(name, given)


def _decoded(text: str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        raise NoCall from None
