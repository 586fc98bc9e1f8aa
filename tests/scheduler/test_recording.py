"""Recordings: what is in them, what is not, and what ends them."""

import asyncio
import json
import os
import stat
import threading
import time

import msgspec
import pytest
from click.testing import CliRunner

from pillion.actors import Exit
from pillion.config import Config, ConfigError, Scheduler, Stack
from pillion.contracts.entries import Constraint, Sampling, TokenLogprob
from pillion.ops.cli import main
from pillion.scheduler import recorded
from pillion.scheduler.checkpoint import checkpoint
from pillion.scheduler.masks import Masks
from pillion.scheduler.messages import (
    Publish,
    RowResult,
    SendPlan,
    StepDone,
    Submitted,
    WakeAt,
    Woken,
)
from pillion.scheduler.recorded import Header, NoRecording, frame, read
from pillion.scheduler.recording import LOST, Recorder
from pillion.scheduler.service import run


def header(toy, **settings):
    return Header("1.0", "0", 1e9, toy.settings(**settings))


@pytest.fixture
def record(make, toy, tmp_path):
    """`record()` gives a drive that is recorded from its first event on, and the recorder."""

    def start(options=None, executor=None, limit=1 << 20):
        drive = make(options, executor, connect=False)
        recorder = Recorder(
            tmp_path / "r", header(toy, **(options or {})), limit, lambda: checkpoint(drive.core)
        )
        drive.listeners.append(recorder.put)
        drive.connect()
        return drive, recorder

    return start


def test_a_recording_has_every_event_and_plan_and_tells_that_it_is_whole(record):
    drive, recorder = record({"max_num_batched_tokens": 32})
    wakes = []
    drive.listeners.append(
        lambda event, now, commands: wakes.append(
            next((command.at for command in commands if isinstance(command, WakeAt)), None)
        )
    )
    toy_prompt = tuple(range(100))
    from tests.scheduler.conftest import request

    drive.submit(request("a", toy_prompt), request("b", toy_prompt))
    drive.run()
    recorder.close()
    known, entries = read(recorder.path)
    *entries, last = entries
    assert (known.replica, known.settings.max_num_batched_tokens) == ("0", 32)
    assert [(entry.kind, entry.now) for entry in entries] == [
        (type(event).__name__, now) for event, now in drive.events
    ]
    assert [plan for entry in entries for plan in entry.plans] == list(map(recorded.planned, drive.plans))
    own = [entry.wake for entry in entries][1:]  # the listener came behind the first
    assert own == wakes and any(own)
    assert (last.kind, recorded.reason(last)) == (recorded.END, "the scheduler ended")
    assert stat.S_IMODE(recorder.path.stat().st_mode) == 0o600


def test_nothing_that_users_wrote_is_in_it(toy):
    masks = Masks(b"k" * 32)
    sampling = Sampling(
        seed=7, stop_token_ids=(41,), bad_words=((42, 43),), constraint=Constraint("regex", "secret", "after")
    )
    prompt = toy.prompt(40)
    request = msgspec.structs.replace(
        toy.request("a", prompt, cache_salt="mine", tenant="alice", traceparent="t"), sampling=sampling
    )
    event = masks.masked(Submitted(request, {0: (5, 6)}, ()), [])
    assert isinstance(event, Submitted)
    bare = event.request
    assert (bare.id, bare.arrival, bare.max_tokens) == ("a", request.arrival, request.max_tokens)
    assert len(bare.prompts[0]) == 40 and not set(bare.prompts[0]) & set(prompt)
    assert event.done[0] != (5, 6) and len(event.done[0]) == 2
    assert (bare.tenant, bare.traceparent) == ("", "")
    named = bare.sampling.constraint
    assert bare.sampling == Sampling(seed=0, constraint=named)
    assert named.kind == "regex" and len(named.text) == 32 and not named.after
    assert bare.cache_salt not in ("", "mine")
    scored = masks.masked(Submitted(toy.request("b", prompt, prompt_logprobs=3)), [])
    assert scored.request.sampling == Sampling(seed=0, prompt_logprobs=3), "plans depend on it"
    rows = (RowResult(0, 99, (5,), None, (TokenLogprob(-1.0, 1),), "text", b"told"),)
    done = masks.masked(StepDone(1, rows, 0.1), [])
    assert done == StepDone(1, (RowResult(0, 99, (0,)),), 0.1)


def test_numbers_are_equal_as_far_as_prefixes_are_and_by_key_and_salt(toy):
    def numbers(prompt, key=b"k" * 32, salt=""):
        event = Masks(key).masked(Submitted(toy.request("a", prompt, cache_salt=salt)), [])
        return event.request.prompts[0]

    prompt = toy.prompt(50)
    other = (*prompt[:20], prompt[20] + 1, *prompt[21:])
    same = [one == two for one, two in zip(numbers(prompt), numbers(other), strict=True)]
    assert same == [True] * 20 + [False] * 30  # also where the later tokens are the same
    assert numbers(prompt)[0] != numbers(prompt, salt="s")[0]
    assert numbers(prompt)[0] != numbers(prompt, key=b"l" * 32)[0]


def test_an_answer_that_is_asked_on_has_the_numbers_that_it_had(record, toy):
    """Blocks of generated tokens are found again by the next turn of a chat."""
    drive, recorder = record()
    first = toy.request("a", toy.prompt(20), max_tokens=30, ignore_eos=True)
    drive.submit(first)
    drive.run()
    before = drive.core.snapshot().hit_tokens
    drive.submit(toy.request("b", (*first.prompts[0], *drive.output("a"), 5, 6)))
    drive.run()
    assert drive.core.snapshot().hit_tokens - before == 48
    recorder.close()
    events = [recorded.event(entry) for entry in read(recorder.path)[1] if entry.kind != recorded.END]
    asked = [event.request.prompts[0] for event in events if isinstance(event, Submitted)]
    rows = [row.tokens for event in events if isinstance(event, StepDone) for row in event.rows]
    brought = tuple(token for tokens in rows for token in tokens)[:30]
    assert asked[1][:50] == asked[0] + brought
    assert set(asked[1]).isdisjoint(drive.output("a"))


def test_what_came_too_late_is_no_part_of_its_sequence(make, toy):
    drive, masks, results = make(), Masks(b"k" * 32), []
    drive.listeners.append(lambda event, now, commands: results.append(masks.masked(event, commands)))
    drive.submit(toy.request("a", toy.prompt(20), max_tokens=9, ignore_eos=True))
    drive.finish_step()
    (row,) = results[-1].rows
    assert row.tokens[0] and row.incarnation == 1
    state = masks._live["a"][0].state
    lost = masks.masked(StepDone(9, (RowResult(0, 1, (5,)),), 0.1), [])
    assert lost.rows[0].tokens == (0,) and masks._live["a"][0].state == state


def parts_of(folder):
    """Each part's header, its entries and why it ends; in order."""
    found = []
    for path in sorted(folder.iterdir(), key=lambda path: read(path)[0].part):
        known, entries = read(path)
        *entries, last = entries
        found.append((known, entries, recorded.reason(last)))
    return found


def until(what):
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_full_part_is_followed_by_one_that_begins_with_what_is_held(record, toy, tmp_path, monkeypatch):
    monkeypatch.setattr("pillion.scheduler.recording.WRITE_EVERY", 0.01)
    monkeypatch.setattr("pillion.scheduler.recording.PARTS", 250)
    drive, recorder = record(limit=250 * 200)
    for part in range(4):
        drive.submit(toy.request(f"r{part}", toy.prompt(64, part % 2), max_tokens=40, ignore_eos=True))
        while recorder._header.part <= part:  # what is written makes it full, what comes then begins the next
            drive.finish_step()
            until(lambda: not recorder._waiting)
    recorder._limit = 1 << 30  # the rest goes into the last part
    drive.run()
    recorder.close()
    parts = parts_of(tmp_path / "r")
    more = len(parts) - 1
    assert [known.part for known, _, _ in parts] == list(range(more + 1)) and more >= 4
    assert parts[0][0].core is None and all(known.core.sequences for known, _, _ in parts[1:])
    assert {known.life for known, _, _ in parts} == {1e9}
    assert [why for _, _, why in parts] == [recorded.GOES_ON] * more + ["the scheduler ended"]
    # Together they have it all, and each replays from where it begins to where the next does.
    whole = [(entry.kind, entry.now) for _, entries, _ in parts for entry in entries]
    assert whole == [(type(event).__name__, now) for event, now in drive.events]
    done = CliRunner().invoke(main, ["replay", str(tmp_path / "r"), "--json"])
    assert done.exit_code == 0, done.output
    told = [json.loads(line) for line in done.output.splitlines()]
    assert [one["seam"] for one in told] == [None] + [True] * more
    assert sum(one["entries"] for one in told) == len(drive.events)
    # Nothing that anybody wrote is in what a part begins with.
    for known, _, _ in parts[1:]:
        assert known.core is not None
        tokens = {token for one in known.core.sequences for token in one.tokens}
        assert tokens and max(tokens) > toy.VOCABULARY
    # Where a part does not begin as the one before ended, that is told.
    last = max((tmp_path / "r").iterdir(), key=lambda path: read(path)[0].part)
    known, entries = read(last)
    other = msgspec.structs.replace(known.core, lead=0.025)
    changed = frame(msgspec.structs.replace(known, core=other)) + frame([*entries])
    last.write_bytes(recorded.MAGIC + changed)
    done = CliRunner().invoke(main, ["replay", str(tmp_path / "r")])
    assert done.exit_code == 1 and "it does not begin with what the part before ended with" in done.output


def test_the_disk_that_it_takes_is_bounded(record, toy, tmp_path, monkeypatch):
    monkeypatch.setattr("pillion.scheduler.recording.WRITE_EVERY", 0.01)
    monkeypatch.setattr("pillion.scheduler.recording.PARTS", 80)
    drive, recorder = record(limit=16_000)
    for number in range(1000):
        if recorder._header.part >= 12:
            break
        drive.submit(toy.request(f"{number}", toy.prompt(64, number), max_tokens=30))
        drive.run()
        until(lambda: not recorder._waiting)
    recorder.close()
    parts = parts_of(tmp_path / "r")
    assert parts[0][0].part > 0 and parts[-1][0].part >= 12  # the oldest went
    assert sum(path.stat().st_size for path in (tmp_path / "r").iterdir()) < 2 * 16_000


def test_what_the_writer_cannot_keep_up_with_leaves_a_gap(make, toy, tmp_path, monkeypatch):
    going = threading.Event()
    own = Recorder._entry
    monkeypatch.setattr("pillion.scheduler.recording.QUEUE", 10)
    monkeypatch.setattr(Recorder, "_entry", lambda self, heard: going.wait(60) and own(self, heard))
    drive = make(None, None, connect=False)
    recorder = Recorder(tmp_path, header(toy), 1 << 20, lambda: checkpoint(drive.core))
    recorder.put(Woken(), 0.0, [])
    until(lambda: not recorder._waiting)  # the writer hangs with the first
    start = time.monotonic()
    for now in range(1, 30):
        recorder.put(Woken(), float(now), [])
    assert time.monotonic() - start < 5
    going.set()
    until(lambda: not recorder._waiting)
    # The first that comes then is not told, but held in what the next part begins with.
    for now in (30.0, 31.0):
        recorder.put(Woken(), now, [])
    recorder.close()
    (_, lost, why), (known, found, _) = parts_of(tmp_path)
    assert [entry.now for entry in lost] == [float(now) for now in range(11)] and why == LOST
    assert known.core == checkpoint(drive.core) and [entry.now for entry in found] == [31.0]


def test_older_recordings_give_way_and_others_do_not(make, toy, tmp_path):
    for name, size in (("0-1000", 50), ("0-2000", 60), ("0-3000", 50), ("0-1-4000", 500), ("1-5000", 500)):
        (tmp_path / f"scheduler-{name}.rec").write_bytes(b"x" * size)
    Recorder(tmp_path, header(toy), 128, lambda: checkpoint(make().core)).close()
    assert {path.name for path in tmp_path.iterdir()} == {
        *("scheduler-0-2000.rec", "scheduler-0-3000.rec", "scheduler-0-1000000000000.rec"),
        *("scheduler-0-1-4000.rec", "scheduler-1-5000.rec"),
    }


def test_a_folder_that_cannot_be_used_is_named(make, toy, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--record: cannot write to"):
        Recorder(tmp_path / "file", header(toy), 1000, lambda: checkpoint(make().core))


def test_files_that_are_none_or_damaged_or_cut_off(toy, tmp_path):
    file = tmp_path / "x.rec"
    whole = recorded.MAGIC + frame(header(toy)) + frame([recorded.entry(Woken(), 1.0, [])])
    for content, why in (
        (b"", "no recording"),
        (b"#!/bin/sh\n", "no recording"),
        (recorded.MAGIC, "ends before its header"),
        (recorded.MAGIC + frame(Header("1", "0", 1.0, toy.settings(), schema=99)), "schema is 99"),
        (whole[:-3] + b"xxx", "damaged"),
        (whole + frame([recorded.Entry(1.0, "Moon", recorded.entry(Woken(), 1.0, []).event)]), "'Moon'"),
    ):
        file.write_bytes(content)
        with pytest.raises(NoRecording, match=why):
            list(map(recorded.event, read(file)[1]))
    file.write_bytes(whole + frame([recorded.entry(Woken(), 2.0, [])])[:-1])
    assert [entry.now for entry in read(file)[1]] == [1.0]


def test_tokens_do_not_count_in_the_checksum_and_their_number_does(make, toy):
    drive = make()
    seen = []
    drive.listeners.append(lambda event, now, commands: seen.extend(commands))
    drive.submit(toy.request("a", toy.prompt(9), max_tokens=3, ignore_eos=True))
    drive.run()
    publish = next(command for command in seen if isinstance(command, Publish))
    assert any(isinstance(command, SendPlan) for command in seen)
    (item,) = publish.items

    def rest(**changes):
        values = {name: getattr(item, name) for name in item.__struct_fields__} | changes
        return recorded.answered([Publish(publish.step, (type(item)(**values),), publish.finished)])[1]

    assert rest() == rest(tokens=tuple(token + 1 for token in item.tokens))
    assert len({rest(), rest(tokens=(*item.tokens, 1)), rest(position=7), rest(finish="stop")}) == 4


def test_a_full_disk_ends_the_recording_and_not_the_scheduler(record, toy, tmp_path, monkeypatch, caplog):
    """One that starts where its last life has filled the disk serves all the same, and leaves no file."""

    def full(descriptor, mode):
        os.close(descriptor)
        return open("/dev/full", mode)

    with monkeypatch.context() as patched:
        patched.setattr("pillion.scheduler.recording.os.fdopen", full)
        drive, recorder = record()
        until(lambda: not recorder._thread.is_alive())
    drive.submit(toy.request("a", (1, 2, 3), max_tokens=3))
    drive.run()
    recorder.close()
    assert drive.core.snapshot().steps > 0 and "No space left on device" in caplog.text
    assert not list((tmp_path / "r").iterdir())


def test_what_cannot_be_recorded_to_is_said_in_a_line(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    stack = Stack(redis=f"unix://{tmp_path}/none")
    asked = Config(stack=stack, scheduler=Scheduler(record=str(tmp_path / "file")))
    assert asyncio.run(run(asked)) == Exit.USAGE
    assert "--record: cannot write to" in caplog.text
