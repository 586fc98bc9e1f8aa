"""Reading what a replica has journalled. What cannot be read ends a history: nothing behind it is told, and
where its request runs on it is computed again.
"""

from collections.abc import Iterable

from pillion.bus.connection import Connection
from pillion.bus.keys import Keys
from pillion.bus.reader import Reader
from pillion.contracts.entries import Record, StepOutput, Tokens


async def read_record(connection: Connection, keys: Keys, request: str, read: Reader) -> Record | None:
    """The folded journal of a finished request, while it is kept."""
    payload = await connection.call("GET", keys.record(request))
    return None if payload is None else read(payload, Record, f"of request {request}")


async def read_items(
    connection: Connection,
    keys: Keys,
    replica: str,
    read: Reader,
    requests: Iterable[str] | None = None,
) -> list[Tokens]:
    """All items that the replica's journal holds for these requests (None: for all), in order, up to the
    first entry that cannot be read.
    """
    wanted = None if requests is None else frozenset(requests)
    items: list[Tokens] = []
    start = "-"
    while True:
        batch = await connection.call("XRANGE", keys.journal(replica), start, "+", "COUNT", 512)
        for entry, fields in batch:
            output = read(fields[1], StepOutput, f"{entry.decode()} of replica {replica}'s journal")
            if output is None:
                return items
            items.extend(item for item in output.items if wanted is None or item.request in wanted)
        if len(batch) < 512:
            return items
        start = "(" + batch[-1][0].decode()
