"""`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, or `[TOOL_CALLS]name[ARGS]{...}` for each call, as
newer ones write: Mistral.
"""

import json
import re

from pillion.gateway.calls import objects
from pillion.gateway.calls.grammar import Controls, Frame
from pillion.gateway.protocol.request import Calls
from pillion.gateway.source import NoCall, Source, Steps

OPEN, ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
MARKS = (OPEN, ID, ARGUMENTS)

_NAME = re.compile(r"[a-zA-Z0-9_.\-]*")


def read(source: Source, calls: Calls) -> Steps[None]:
    yield from objects.marked(source, calls, OPEN, _calls)


def _calls(source: Source, calls: Calls) -> Steps[None]:
    yield from (_listed if (yield from source.one_of("[")) else _named)(source, calls)


def _listed(source: Source, calls: Calls) -> Steps[None]:
    while True:
        yield from source.space()
        yield from objects.read(source, calls)
        if calls.single:
            return
        yield from source.space()
        match (yield from source.one_of(",", "]")):
            case "]":
                source.leave_out()
                return
            case "":
                raise NoCall


def _named(source: Source, calls: Calls) -> Steps[None]:
    name = yield from source.run(_NAME)
    if (yield from source.one_of(ID, ARGUMENTS)) == ID:
        yield from source.run(_NAME)
        yield from source.need(ARGUMENTS)
    yield from source.space()
    yield from objects.arguments(source, calls, name)


def write(name: str, arguments: str) -> str:
    """A call as the model would write it; `arguments` in JSON."""
    return f'{OPEN}[{{"name": {json.dumps(name)}, "arguments": {arguments}}}]'


def frame(controls: Controls) -> Frame:
    if ARGUMENTS in controls:
        return Frame(before=lambda name: (OPEN, name, ARGUMENTS))
    return Frame(
        before=lambda name: (f'{{"name": "{name}", "arguments": ',),
        after=("}",),
        between=(", ",),
        begin=(OPEN, "["),
        end=("]",),
    )
