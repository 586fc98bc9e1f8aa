"""Reasoning before an answer, as models mark it: `<think>...</think>`. Pure."""

from pillion.gateway.source import Source, Steps

OPEN, CLOSE = "<think>", "</think>"
MARKS = (OPEN, CLOSE)


def read(source: Source, opened: bool) -> Steps[None]:
    """Tells the reasoning, if the text begins with it. Blanks inside of its marks and behind it are left out.

    `opened`: the prompt ends with the opening mark; a model may write it once more.
    """
    source.thinking = opened
    yield from source.space()
    if not (yield from source.one_of(OPEN)) and not opened:
        source.again()
        return
    source.thinking = True
    yield from source.space()
    source.leave_out()
    if (yield from source.until(CLOSE, "reasoning")):
        source.thinking = False
        yield from source.space()
        source.leave_out()
