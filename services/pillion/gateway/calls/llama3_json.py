"""`{"name": ..., "parameters": {...}}` as the whole answer, or behind `<|python_tag|>`; several with `;`
between them: Llama 3.
"""

import json

from pillion.gateway.calls import objects
from pillion.gateway.calls.grammar import Controls, Frame
from pillion.gateway.protocol.request import Calls
from pillion.gateway.source import NoCall, Source, Steps

TAG = "<|python_tag|>"
MARKS = (TAG,)


def read(source: Source, calls: Calls) -> Steps[None]:
    yield from source.space()
    begun = yield from source.one_of(TAG, "{")
    if begun != TAG:
        source.again()
    while begun or (yield from source.until(TAG)):
        begun = ""
        try:
            while True:
                yield from source.space()
                yield from objects.read(source, calls)
                if calls.single:
                    return
                yield from source.space()
                yield from source.need(";")
        except NoCall:
            source.content()
            if calls.single and source.calls:
                return


def write(name: str, arguments: str) -> str:
    """A call as the model would write it; `arguments` in JSON."""
    return f'{TAG}{{"name": {json.dumps(name)}, "parameters": {arguments}}}'


def frame(controls: Controls) -> Frame:
    return Frame(before=lambda name: (f'{{"name": "{name}", "parameters": ',), after=("}",), between=("; ",))
