"""Fields that nobody knows, at a gateway that lets them pass: ignored, counted, told once each."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from pillion.gateway import fields
from pillion.gateway.fields import STREAM_OPTIONS, TABLE, Form
from pillion.gateway.protocol.structured import NESTED

log = logging.getLogger(__name__)

TOLD = 100  # names; more are only counted
_NESTED: Mapping[str, Collection[str]] = {"stream_options": STREAM_OPTIONS, **NESTED}


class Unknown:
    """`--unknown-fields`: `warn` takes them out of a body; `reject` leaves them for the table to refuse."""

    def __init__(self, policy: str, count: Callable[[int], None]) -> None:
        self._passes = policy == "warn"
        self._count = count
        self._told: set[str] = set()

    def sift(self, body: dict[str, Any], form: Form) -> dict[str, Any]:
        """The body as it is to be read."""
        if not self._passes:
            return body
        body, names = _without(body, (), TABLE[form])
        for path, known in _NESTED.items():
            body, inner = _without(body, path.split("."), known)
            names += [f"{path}.{name}" for name in inner]
        if names:
            self._count(len(names))
        for name in map(fields.shown, names[:TOLD]):
            if name not in self._told and len(self._told) < TOLD:
                self._told.add(name)
                log.warning("the unknown field %s is ignored, here and from now on", name)
        return body


def _without(
    body: dict[str, Any], path: Sequence[str], known: Collection[str]
) -> tuple[dict[str, Any], list[str]]:
    """The body without the names that are not known in the object at `path`; and these."""
    if not path:
        names = fields.unknown(body, known)
        return {name: value for name, value in body.items() if name in known}, names
    inner = body.get(path[0])
    if not isinstance(inner, dict):
        return body, []
    inner, names = _without(inner, path[1:], known)
    return body | {path[0]: inner}, names
