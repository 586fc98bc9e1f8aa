"""Reading what another release may have written. What cannot be read is said, counted and left out; where
somebody waits for an answer to it, `pillion.bus.dead` sees to that.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

import msgspec

from pillion.contracts.entries import Struct, UnknownSchema, decode

log = logging.getLogger(__name__)

S = TypeVar("S", bound=Struct)


class Reader:
    """One service's. `count` is told the kind of each entry that could not be read."""

    def __init__(self, count: Callable[[str], None]) -> None:
        self._count = count

    def __call__(self, payload: bytes, kind: type[S], where: str) -> S | None:
        """None for what is of an unknown schema, or no entry. `where` it stands, for the log."""
        try:
            return decode(payload, kind)
        except (UnknownSchema, msgspec.DecodeError) as error:
            self.aside(kind.__name__, where, error)
            return None

    def aside(self, kind: str, where: str, error: Exception) -> None:
        log.error("%s %s cannot be read, left out: %s", kind, where, error)
        self._count(kind)
