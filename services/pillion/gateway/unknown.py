"""Top-level fields that nobody knows, at a gateway that lets them pass: ignored, counted, told once each."""

import logging
from collections.abc import Callable
from typing import Any

from pillion.gateway import fields
from pillion.gateway.fields import STREAM_OPTIONS, TABLE, Form

log = logging.getLogger(__name__)

TOLD = 100  # names; more are only counted


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
        body, names = _without(body, fields.unknown(body, TABLE[form]))
        options = body.get("stream_options")
        if isinstance(options, dict):
            known, inner = _without(options, fields.unknown(options, STREAM_OPTIONS))
            body = body | {"stream_options": known}
            names += [f"stream_options.{name}" for name in inner]
        if names:
            self._count(len(names))
        for name in map(fields.shown, names):
            if name not in self._told and len(self._told) < TOLD:
                self._told.add(name)
                log.warning("the unknown field %s is ignored, here and from now on", name)
        return body


def _without(body: dict[str, Any], names: list[str]) -> tuple[dict[str, Any], list[str]]:
    return {name: value for name, value in body.items() if name not in names}, names
