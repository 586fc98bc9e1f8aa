"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen, and many others."""

import json

from pillion.gateway.calls import objects
from pillion.gateway.calls.grammar import Controls, Frame
from pillion.gateway.protocol.request import Calls
from pillion.gateway.source import Source, Steps

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MARKS = (OPEN, CLOSE)


def read(source: Source, calls: Calls) -> Steps[None]:
    yield from objects.marked(source, calls, OPEN, _call)


def _call(source: Source, calls: Calls) -> Steps[None]:
    yield from objects.read(source, calls)
    # Told by now: models forget the mark at the end.
    yield from source.space()
    if (yield from source.one_of(CLOSE)):
        source.leave_out()
    else:
        source.again()


def write(name: str, arguments: str) -> str:
    """A call as the model would write it; `arguments` in JSON."""
    return f'{OPEN}\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n{CLOSE}'


def frame(controls: Controls) -> Frame:
    return Frame(
        before=lambda name: (OPEN, f'\n{{"name": "{name}", "arguments": '),
        after=("}\n", CLOSE),
        between=("\n",),
    )
