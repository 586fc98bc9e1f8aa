"""Reading what a replica has journalled."""

from collections.abc import Iterable

from pillion.bus.connection import Connection
from pillion.bus.keys import Keys
from pillion.contracts.entries import Record, StepOutput, Tokens, decode


async def read_record(connection: Connection, keys: Keys, request: str) -> Record | None:
    """The folded journal of a finished request, while it is kept."""
    payload = await connection.call("GET", keys.record(request))
    return None if payload is None else decode(payload, Record)


async def read_items(
    connection: Connection, keys: Keys, replica: str, requests: Iterable[str] | None = None, start: str = "-"
) -> list[Tokens]:
    """All items that the replica's journal holds for these requests (None: for all), in order."""
    wanted = None if requests is None else frozenset(requests)
    items: list[Tokens] = []
    while True:
        batch = await connection.call("XRANGE", keys.journal(replica), start, "+", "COUNT", 512)
        for _, fields in batch:
            output = decode(fields[1], StepOutput)
            items.extend(item for item in output.items if wanted is None or item.request in wanted)
        if len(batch) < 512:
            return items
        start = "(" + batch[-1][0].decode()
