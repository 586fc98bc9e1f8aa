"""Which requests there are in the whole stack, by its streams: an entry stays until its last token."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import msgspec

from pillion.bus import Connection, Keys
from pillion.contracts.entries import Request, UnknownSchema, decode

PAGE = 32  # entries a read: each has its prompts


@dataclass(frozen=True, slots=True)
class Live:
    """`replica` None: it waits in admission."""

    request: Request
    replica: str | None


async def live(connection: Connection, keys: Keys, replicas: Sequence[str]) -> AsyncIterator[Live]:
    """Those of the replicas, then those that wait, each in the order in which they came. Raises RedisError.

    It is no snapshot: who moves on meanwhile may come twice, or not at all.
    """
    for replica in (*replicas, None):
        stream, start = keys.submit if replica is None else keys.run(replica), "-"
        while rows := await connection.call("XRANGE", stream, start, "+", "COUNT", PAGE):
            for _, fields in rows:
                try:
                    request = decode(fields[1], Request)
                except (UnknownSchema, msgspec.DecodeError):
                    continue  # whoever reads it sets it aside, and says so
                yield Live(request, replica)
            start = "(" + rows[-1][0].decode()
