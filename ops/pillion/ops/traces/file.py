"""Trace files: CSV with a header and one request a line.

`num_prefill_tokens` and `num_decode_tokens` must be there; `arrived_at` (seconds), `prefix_group`,
`prefix_tokens`, `priority` and `tenant` may be; other columns are passed over. Without `arrived_at` a file
tells lengths only, and every request is at 0.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path

from .arrival import Arrival

NEEDED = ("num_prefill_tokens", "num_decode_tokens")


class BadTrace(ValueError):
    """The file is no trace. One line that says where and why."""


def read(path: str | Path) -> list[Arrival]:
    """All requests, in the order of their arrival, the first at 0. Raises BadTrace."""
    found: list[Arrival] = []
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            missing = [name for name in NEEDED if name not in (rows.fieldnames or ())]
            if missing:
                raise BadTrace(
                    f"{path}: its first line must name its columns, {' and '.join(missing)} among them"
                )
            for row in rows:
                try:
                    found.append(_arrival(row))
                except ValueError as error:
                    raise BadTrace(f"{path}, line {rows.line_num}: {error}") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadTrace(f"{path} cannot be read: {error}") from None
    if not found:
        raise BadTrace(f"{path} holds no request")
    found.sort(key=lambda arrival: arrival.at)
    first = found[0].at
    return [replace(arrival, at=arrival.at - first) for arrival in found]


def timed(trace: Sequence[Arrival]) -> bool:
    """Whether it says when its requests arrived."""
    return any(arrival.at for arrival in trace)


def _arrival(row: Mapping[str, str | None]) -> Arrival:
    """Raises ValueError."""
    prompt, output = (_whole(row, name, 1) for name in NEEDED)
    prefix = _whole(row, "prefix_tokens", 0)
    if prefix > prompt:
        raise ValueError(f"prefix_tokens is {prefix}, the prompt has {prompt}")
    return Arrival(
        at=_number(row, "arrived_at"),
        prompt=prompt,
        output=output,
        group=_whole(row, "prefix_group", 0) if row.get("prefix_group") else None,
        prefix=prefix,
        priority=_whole(row, "priority", None),
        tenant=row.get("tenant") or "",
    )


def _number(row: Mapping[str, str | None], name: str) -> float:
    text = row.get(name)
    if not text and name in NEEDED:
        raise ValueError(f"{name} is missing")
    try:
        number = float(text or 0)
    except ValueError:
        raise ValueError(f"{name} is {text!r}, no number") from None
    if not isfinite(number):
        raise ValueError(f"{name} is {text!r}, no finite number")
    return number


def _whole(row: Mapping[str, str | None], name: str, least: int | None) -> int:
    number = _number(row, name)
    if number != int(number) or (least is not None and number < least):
        raise ValueError(
            f"{name} is {row.get(name)}; it must be a whole number"
            + ("" if least is None else f", at least {least}")
        )
    return int(number)
