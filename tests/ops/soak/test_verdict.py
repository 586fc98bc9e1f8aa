"""What counts as having come back."""

from pillion.ops.soak.verdict import MIB, judge, table

BEFORE = {
    "rss.gateway": 80.0 * MIB, "descriptors.gateway": 20.0, "tasks.gateway": 12.0, "stream.submit": 0.0,
    "blocks.referenced": 0.0, "keys.replicas": 1.0, "memory.lasting keys": 1000.0, "stream.beats": 300.0,
}  # fmt: skip


def failed(**changes: float) -> list[str]:
    after = BEFORE | {name.replace("__", "."): value for name, value in changes.items()}
    return [line.name for line in judge(BEFORE, [BEFORE], after) if not line.ok]


def test_what_is_as_it_was_or_within_its_tolerance_is_fine() -> None:
    assert failed() == []
    assert (
        failed(rss__gateway=99.0 * MIB, descriptors__gateway=22, tasks__gateway=11, stream__beats=1100) == []
    )


def test_each_leak_is_named() -> None:
    assert failed(rss__gateway=101.0 * MIB) == ["rss.gateway"]
    assert failed(descriptors__gateway=23) == ["descriptors.gateway"]
    assert failed(tasks__gateway=15) == ["tasks.gateway"]
    assert failed(stream__submit=1) == ["stream.submit"]
    assert failed(blocks__referenced=1) == ["blocks.referenced"]
    assert failed(stream__beats=1300) == ["stream.beats"]


def test_a_key_without_an_end_is_a_leak_unless_its_stream_is_just_first_used() -> None:
    assert failed(keys__journal=1) == []
    assert failed(keys__journal=2) == ["keys.journal"]
    assert failed(keys__record=1) == ["keys.record"]
    assert failed(keys__out=1) == ["keys.out"]


def test_what_no_rule_names_is_told_and_not_judged() -> None:
    after = BEFORE | {"ending keys.tomb": 500.0}
    lines = judge(BEFORE, [{"ending keys.tomb": 900.0}], after)
    (line,) = [line for line in lines if line.name == "ending keys.tomb"]
    assert (line.ok, line.rule, line.peak) == (True, None, 900.0)
    shown = table(judge(BEFORE, [], BEFORE | {"rss.gateway": 200.0 * MIB}))
    assert "FAIL rss.gateway" in shown and "200.0 MiB" in shown
