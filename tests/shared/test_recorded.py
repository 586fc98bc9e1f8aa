"""What earlier releases wrote is read by this one: their bytes are in the folder beside."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pillion.bus import Group, append
from pillion.bus.ledger import Ledger, Opened
from pillion.contracts import entries
from pillion.contracts import executor_pb2 as pb
from pillion.contracts.entries import OLDEST, SCHEMA, decode, encode
from pillion.gateway.heads import Heads, StreamHead
from pillion.ops.recorded import ENTRIES, FOLDER, MESSAGES, expected, named
from pillion.scheduler.intake import Intake
from pillion.scheduler.publisher import GROUP
from pillion.version import VERSION
from tests.bus_client import KEYS, READ, client

RELEASES = sorted(path.name for path in FOLDER.iterdir())
FILES = sorted(FOLDER.glob("*/*.bin"))
KINDS = {
    name: kind
    for name, kind in {**vars(entries), "StreamHead": StreamHead}.items()
    if isinstance(kind, type) and issubclass(kind, entries.Struct) and "v" in kind.__struct_fields__
} | {"Refusal": entries.Refusal}


def within(wanted: Any, found: Any) -> bool:
    """Whether all that is wanted is there; what later releases have added is passed over."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(
            name in found and within(value, found[name]) for name, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(found, list | tuple) and len(wanted) <= len(found) and all(map(within, wanted, found))
        )
    return bool(wanted == found)


def test_this_release_is_recorded() -> None:
    """Before a release: `python -m pillion.ops.recorded`, and what it writes is committed."""
    assert VERSION in RELEASES
    assert ENTRIES.keys() == KINDS.keys(), "record the new kind too"


@pytest.mark.parametrize("file", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_its_bytes_are_read(file: Path) -> None:
    payload = file.read_bytes()
    if file.stem in KINDS:
        wanted = json.loads((file.parent / "expected.json").read_text())[file.stem]
        found = decode(payload, KINDS[file.stem])
        assert within(wanted, msgspec.to_builtins(found, str_keys=True))
        assert decode(encode(found), KINDS[file.stem]) == found
        return
    message = pb.ToExecutor.FromString(payload)
    assert message.WhichOneof("message") == file.stem
    if file.stem == "open":
        assert OLDEST <= message.open.schema <= SCHEMA and message.open.replica == "0"
    elif file.stem == "compile":
        assert (message.compile.place, message.compile.constraint.text) == (2, "[a-z]+")
    else:
        (take,) = message.plan.take
        assert (message.plan.step, take.prompt_length, list(message.plan.slot)) == (3, 3, [0, 1])


def test_all_of_a_release_is_there() -> None:
    for release in RELEASES:
        names = {path.stem for path in (FOLDER / release).glob("*.bin")}
        assert names >= {"Request", "StepOutput", "Record", "Heartbeat", "StreamHead", *MESSAGES}
        assert json.loads((FOLDER / release / "expected.json").read_text()).keys() == names - MESSAGES.keys()


def test_every_field_is_recorded_with_a_value_of_its_own() -> None:
    """Else a field that is left out on the way would not be missed."""
    parts = {"Facts": ENTRIES["Heartbeat"].facts, "Sampling": ENTRIES["Request"].sampling}
    for name, entry in {**ENTRIES, **parts}.items():
        at_default = [
            field.name
            for field in msgspec.structs.fields(entry)
            if not field.required and getattr(entry, field.name) == field.default and field.name != "v"
        ]
        assert at_default == [], name
    assert expected()["Request"]["sampling"]["logit_bias"] == {"5": -1.5}


def test_every_message_to_an_executor_is_recorded() -> None:
    kinds = pb.ToExecutor.DESCRIPTOR.oneofs_by_name["message"].fields
    assert MESSAGES.keys() == {kind.name for kind in kinds}


def test_what_has_gone_since_a_release_is_in_the_changelog() -> None:
    text = (FOLDER.parents[2] / "CHANGELOG.md").read_text()
    sections = re.findall(r"^## (\S+)$", text, re.M)
    assert sections[0] == VERSION and set(RELEASES) <= set(sections)
    now = named()
    for release in RELEASES:
        then = json.loads((FOLDER / release / "names.json").read_text())
        since = text[: text.index(f"## {release}")]
        gone = [name for kind in then for name in then[kind] if name not in now[kind]]
        said = since.replace("_", "-")
        unnamed = [name for name in gone if name.rpartition(".")[2].replace("_", "-") not in said]
        assert not unnamed, f"gone since {release}, and not in CHANGELOG.md"


@pytest.mark.parametrize("version", [OLDEST - 1, SCHEMA + 1])
def test_what_is_neither_old_nor_new_is_refused(version: int) -> None:
    payload = msgspec.msgpack.encode(msgspec.msgpack.decode(encode(ENTRIES["Cancel"])) | {"v": version})
    with pytest.raises(entries.UnknownSchema, match=f"version {version}"):
        decode(payload, entries.Cancel)


@pytest.mark.parametrize("release", RELEASES)
async def test_a_scheduler_goes_on_with_what_a_release_has_left(valkey: Any, release: str) -> None:
    """Its run entry, held by a process that is gone, and its journal."""
    folder = FOLDER / release
    async with client(valkey.url) as one:
        await append(one.connection, KEYS.run("0"), (folder / "Request.bin").read_bytes())
        await append(one.connection, KEYS.journal("0"), (folder / "StepOutput.bin").read_bytes())
        assert len(await Group(one.connection, KEYS.run("0"), GROUP, "gone").read()) == 1
        taken: list[Opened] = []

        async def accept(opened: Opened, cancelled: Any) -> None:
            taken.append(opened)

        async def refuse(refused: Any) -> None:
            raise AssertionError(refused)

        group = Group(one.connection, KEYS.run("0"), GROUP, "successor")
        intake = Intake(one.connection, group, KEYS, "0", Ledger(), accept, refuse, READ)
        assert await intake.recover() == 1
    (opened,) = taken
    assert opened.done() == {1: (), 2: (5, 6), 3: (9,)} and opened.ended() == {1, 3}
    assert opened.request.prompts == ((3, 4, 5), (6,)) and opened.request.sampling.seed == 7


@pytest.mark.parametrize("release", RELEASES)
async def test_a_gateway_answers_for_a_stream_of_a_release(valkey: Any, release: str) -> None:
    """Its head, its record, and the word with which it was given up."""
    folder = FOLDER / release
    async with client(valkey.url) as one:
        name = ENTRIES["Request"].id  # type: ignore[attr-defined]
        head, refusal = ((folder / f"{kind}.bin").read_bytes() for kind in ("StreamHead", "Refusal"))
        fields = ("head", head, "owner", "g1", "life", 1, "parked", 0, "refused", refusal)
        await one.connection.call("HSET", KEYS.stream(name), *fields)
        await one.connection.call("SET", KEYS.record(name), (folder / "Record.bin").read_bytes())
        standing = await Heads(one.connection, KEYS, READ).find(name)
    assert standing is not None and standing.finished and standing.end == "failed"
    assert standing.head.output.stream and standing.head.request.id == name
    assert [item.tokens for item in standing.items()] == [(5, 9)]
