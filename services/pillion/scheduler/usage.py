"""What a replica tells admission's accounts: who got a first token, and what requests that ended used."""

from collections.abc import Sequence

from pillion.bus import Connection, Keys, append, retrying
from pillion.bus.keys import OUT_MAXLEN
from pillion.bus.ledger import Ledger, Opened
from pillion.contracts.entries import Record, Spent, Tokens, Usage, encode


def of_step(
    replica: str, items: Sequence[Tokens], folded: Sequence[tuple[Opened, Record]], ledger: Ledger, now: float
) -> bytes:
    """The word on a step; empty where nobody got a first token or ended. `folded`: what the step ended, which
    is no longer in the ledger. `now`: seconds since the epoch.
    """
    ending = {opened.request.id: opened for opened, _ in folded}
    first, queued = [], []
    for item in items:
        if item.position == 0 and item.choice == 0 and item.tokens:
            opened = ending.get(item.request) or ledger.get(item.request)
            if opened is not None:
                first.append((item.request, max(now - opened.request.arrival, 0.0)))
                if opened.began is not None:
                    queued.append((item.request, max(opened.began - opened.request.arrival, 0.0)))
    if not first and not folded:
        return b""
    spent = tuple(_spent(opened, record) for opened, record in folded)
    return encode(Usage(replica, tuple(first), spent, tuple(queued)))


def unused(replica: str, request: str) -> bytes:
    """The word on a request that ended and has used nothing, or no more than was told before."""
    return encode(Usage(replica, ended=(Spent(request),)))


async def tell(connection: Connection, keys: Keys, word: bytes) -> None:
    await retrying("usage", lambda: append(connection, keys.usage, word, OUT_MAXLEN))


def _spent(opened: Opened, record: Record) -> Spent:
    """`prompts[i]` is computed for each of its `n` choices, less what was cached. Output of earlier lives was
    counted then.
    """
    request = opened.request
    prompt = sum(
        len(request.prompts[index // request.n]) - choice.cached
        for index, choice in enumerate(record.choices)
    )
    output = sum(len(choice.tokens) for choice in record.choices) - opened.earlier
    return Spent(request.id, max(prompt, 0), max(output, 0))
