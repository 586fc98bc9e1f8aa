"""What this release cannot read is said, counted and left out."""

import logging
from typing import Any

import msgspec
import pytest

from pillion.bus import Connection, Keys, Reader, append
from pillion.bus.journal import read_items
from pillion.contracts.entries import SCHEMA, Cancel, StepOutput, Tokens, encode
from pillion.telemetry import Metrics

LATER = msgspec.msgpack.encode({"request": "r", "v": SCHEMA + 1})


def test_it_is_said_and_counted_by_kind(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics("test", "0", [])
    read = Reader(metrics.unreadable)
    assert read(encode(Cancel("r")), Cancel, "1-1") == Cancel("r")
    with caplog.at_level(logging.ERROR):
        assert read(LATER, Cancel, "1-2") is None
        assert read(b"no entry", Cancel, "1-3") is None
    assert "Cancel 1-2 cannot be read, left out: Cancel has schema version" in caplog.text
    assert "Cancel 1-3" in caplog.text and len(caplog.records) == 2
    assert metrics.registry.get_sample_value("pillion_unreadable_total", {"kind": "Cancel"}) == 2


async def test_a_journal_ends_before_what_cannot_be_read(valkey: Any) -> None:
    """Behind it positions are missing, and two histories are never joined."""
    connection, keys = Connection(valkey.url, "test"), Keys("s")
    seen: list[str] = []
    outputs = [encode(StepOutput("0", 1, step, (Tokens("r", 0, step, (step,)),))) for step in range(3)]
    for payload in (outputs[0], outputs[1], LATER, outputs[2]):
        await append(connection, keys.journal("0"), payload)
    items = await read_items(connection, keys, "0", Reader(seen.append))
    assert [item.position for item in items] == [0, 1] and seen == ["StepOutput"]
    await connection.close()
