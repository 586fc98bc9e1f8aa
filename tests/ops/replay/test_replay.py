"""What was recorded replays to the same plans; a core that decides otherwise is found at its first plan."""

import json
import random
from dataclasses import fields

import msgspec
import pytest
from click.testing import CliRunner

from pillion.ops.cli import main
from pillion.ops.replay.replaying import Seen, count, replay
from pillion.scheduler import policies, recorded
from pillion.scheduler.checkpoint import BadCheckpoint, Checkpoint, Flown, Held, checkpoint, restored
from pillion.scheduler.core import Core
from pillion.scheduler.flights import Flight
from pillion.scheduler.masks import Masks
from pillion.scheduler.roster import Roster
from pillion.scheduler.sequence import Sequence
from pillion.version import VERSION
from tests.scheduler import conftest as toy

KINDS = (
    "submit",
    "submit",
    "step",
    "step",
    "step",
    "step",
    "fail",
    "cancel",
    "park",
    "lose",
    "wait",
    "wait",
    "compile",
    "compile",
)


def steps_of(seed):
    draw = random.Random(seed)
    return [(draw.choice(KINDS), draw.randint(1, 60)) for _ in range(48)]


def recorded_run(steps, listener=None, stages=1, **options):
    """The entries of a run, and its drive."""
    core = Core(toy.settings(**options))
    facts = toy.facts(block_size=4, num_blocks=30, max_model_len=100, tile=4, pp=stages, grammars=3)
    drive = toy.Drive(core, facts, connect=False)
    masks, entries = Masks(b"k" * 32), []
    drive.listeners.append(
        lambda event, now, commands: entries.append(
            recorded.entry(masks.masked(event, commands), now, commands)
        )
    )
    if listener is not None:
        drive.listeners.append(listener(core))
    drive.connect()
    for count_, (what, number) in enumerate(steps):
        known = tuple(drive.requests)
        match what:
            case "submit":
                prompt = (toy.prompt(number, number % 2) + toy.prompt(60, number))[: number + 5]
                drive.submit(
                    toy.request(
                        str(count_),
                        prompt,
                        n=1 + number % 2,
                        priority=number % 3,
                        cache_salt="s" * (number % 2),
                        regex="" if number % 3 else "abcde"[number % 5],
                    )
                )
            case "compile" if drive.compiling:
                drive.compile()
            case "step" | "fail" if drive.in_flight:
                drive.finish_step(fail=what == "fail")
            case "cancel" if known:
                drive.cancel(known[number % len(known)])
            case "park" if known:
                drive.park(known[number % len(known)])
                for name in tuple(drive.parked):
                    drive.take_up(name)
            case "lose":
                drive.disconnect()
                drive.connect()
            case "wait":
                drive.until(drive.now + number / 10_000)
    drive.run()
    return entries, drive


@pytest.mark.parametrize("policy", sorted(policies.POLICIES))
def test_every_plan_is_the_same_again(policy):
    total = Seen()
    for seed in range(20):
        options = {"policy": policy, "max_num_batched_tokens": (None, 8, 24)[seed % 3], "max_num_seqs": 4}
        options |= {"prefill_guard": ("stretch", "turns")[seed % 2]}
        entries, drive = recorded_run(steps_of(seed), **options)
        seen, core = Seen(), Core(toy.settings(**options))
        start = core.snapshot()
        for _ in replay(core, entries, seen):
            pass
        assert seen.difference is None, seed
        assert seen.entries == len(entries) == len(drive.events)
        assert seen.plans == len(drive.plans)
        count(core, seen, start)
        snapshot = drive.core.snapshot()
        assert (seen.preemptions, seen.hits) == (snapshot.preemptions, snapshot.hit_tokens)
        for name in ("plans", "preemptions", "hits", "lost", "failed", "hybrid"):
            setattr(total, name, getattr(total, name) + getattr(seen, name))
    assert total.plans > 500
    assert min(total.hits, total.lost, total.failed) > 0
    if policy == "stall-free":
        assert min(total.preemptions, total.hybrid) > 0


class Parts:
    """Takes a checkpoint behind every n-th event, and masks what follows as a recorder that begins there."""

    def __init__(self, core, every):
        self.core, self.every, self.heard = core, every, 0
        self.begun = []  # behind how many events, the checkpoint, what masks, and what it masked since

    def __call__(self, event, now, commands):
        self.heard += 1
        for _, _, masks, entries in self.begun:
            entries.append(recorded.entry(masks.masked(event, commands), now, commands))
        if not self.heard % self.every:
            masks = Masks(b"k" * 32)
            raw = msgspec.msgpack.encode(masks.begun(checkpoint(self.core)))
            self.begun.append((self.heard, msgspec.msgpack.decode(raw, type=Checkpoint), masks, []))


@pytest.mark.parametrize("policy", sorted(policies.POLICIES))
def test_a_part_that_begins_anywhere_replays_to_the_same_plans(policy):
    live = flying = cached = sharing = plans = 0
    for seed in range(6):
        options = {"policy": policy, "max_num_batched_tokens": (None, 8, 24)[seed % 3], "max_num_seqs": 4}
        parts = []
        entries, drive = recorded_run(
            steps_of(seed),
            lambda core, parts=parts: parts.append(Parts(core, 7)) or parts[0],
            1 + seed % 2,
            **options,
        )
        through = Core(toy.settings(**options))
        before = 0
        for at, held, _, behind in parts[0].begun:
            # Who begins there masks as who has heard all, and a replay of what came before ends with it.
            assert behind == entries[at:]
            for _ in replay(through, entries[before:at], Seen()):
                pass
            assert checkpoint(through) == held
            before = at
            seen, core = Seen(), restored(toy.settings(**options), held)
            start = core.snapshot()
            for _ in replay(core, behind, seen):
                pass
            assert seen.difference is None, (seed, at, seen.difference)
            assert seen.entries == len(behind)
            count(core, seen, start)
            ends = drive.core.snapshot()
            assert seen.hits + start.hit_tokens == ends.hit_tokens
            live += len(held.requests)
            flying += len(held.flights)
            plans += seen.plans
            if held.attached is not None:
                cached += len(held.attached.cached)
                sharing += any(one.entries for one in held.sequences)
    assert min(live, flying, cached, sharing) > 5 and plans > 500


def test_whatever_a_core_is_made_of_is_in_a_checkpoint_or_follows_from_it():
    """Who adds to a core's state adds it there, or here if it follows from the rest."""
    core = Core(toy.settings())
    drive = toy.Drive(core, toy.facts())
    drive.submit(toy.request("a", toy.prompt(40), max_tokens=9, ignore_eos=True))
    drive.finish_step()
    roster, budget, sequence = core._roster, core._budget, core._requests["a"].sequences[0]
    parts = (
        (
            core,
            {"_settings", "_counters", "_requests", "_suspects", "_order", "_facts", "_flights", "_step"}
            | {"_woken_at"},
            {"_configured", "_hash", "_policy", "_waiting", "_roster", "_budget"},
        ),
        (
            roster,
            {"decoding", "by_incarnation", "returned", "free_slots", "_releasing", "_incarnation"}
            | {"grammars"},
            {"waiting", "pool", "counters", "prefilling", "suspect", "slots", "stages"}
            | {"_reserves", "_watermark"},
        ),
        (roster.grammars, {"_known", "_asked", "since"}, {"places", "_free"}),
        (roster.pool, {"_free", "_cached", "_entries"}, {"block_size", "size", "index", "_references"}),
        (roster.pool.index, set(), {"_size", "_enabled", "_hash", "_entries"}),
        (
            budget,
            {"cost"},
            {"tile", "most", "limit", "target", "stages", "_least", "_turns", "_left", "_grown"}
            | {"_repeated"},
        ),
        (budget.cost, {"_products", "_targets", "_high", "coefficients", "steps"}, {"_tile"}),
        (core._flights, {"lead", "_left"}, {"stages"}),
        (
            sequence,
            {*Held.__struct_fields__} - {"order"},
            {"prompt_length", "priority", "rank", "key", "limit", "capacity", "constraint"}
            | {"logprobs"},  # what is told of a prompt: it is masked in a recording, as tokens are
        ),
    )
    for part, held, follows in parts:
        there = set(part.__slots__ if isinstance(part, Sequence) else vars(part))
        assert there == held | follows, type(part).__name__
    assert {*Flown.__struct_fields__} == {field.name for field in fields(Flight)}


def test_a_state_that_no_scheduler_has_is_refused():
    parts = []
    recorded_run(steps_of(1), lambda core: parts.append(Parts(core, 20)) or parts[0], max_num_seqs=4)
    _, held, *_ = parts[0].begun[0]
    attached = held.attached
    assert attached is not None and held.sequences
    for wrong in (
        {"suspects": (99,)},
        {"counters": (1,) * 99},
        {"sequences": (msgspec.structs.replace(held.sequences[0], state="ILL"), *held.sequences[1:])},
        {"attached": msgspec.structs.replace(attached, free=(*attached.free, 1))},
        {"attached": msgspec.structs.replace(attached, learned=(1.0, 2.0))},
    ):
        with pytest.raises(BadCheckpoint, match="a state that no scheduler has"):
            restored(toy.settings(max_num_seqs=4), msgspec.structs.replace(held, **wrong))


@pytest.fixture
def file(tmp_path):
    steps = [("submit", 50), ("submit", 30), ("step", 1), ("submit", 51), ("step", 1), ("wait", 60)]
    entries, _ = recorded_run(steps, max_num_batched_tokens=16, max_num_seqs=4)
    header = recorded.Header("0.0.1", "0", 1.0, toy.settings(max_num_batched_tokens=16, max_num_seqs=4))
    path = tmp_path / "a.rec"
    path.write_bytes(
        recorded.MAGIC
        + recorded.frame(header)
        + recorded.frame(entries)
        + recorded.frame([recorded.end(9.0, "the scheduler ended")])
    )
    return path


def test_the_command_tells_what_was_recorded(file):
    done = CliRunner().invoke(main, ["replay", str(file)])
    assert done.exit_code == 0, done.output
    assert "3 requests with" in done.output
    assert done.output.endswith("the recording ends: the scheduler ended\nevery plan is the same\n")
    told = json.loads(CliRunner().invoke(main, ["replay", str(file), "--json"]).stdout)
    assert told["requests"] == 3
    assert told["difference"] is None


def test_a_core_that_decides_otherwise_is_found_at_the_first_difference(file, monkeypatch):
    entries = list(recorded.read(file)[1])
    # The watermark counts twice: nobody else is let in at once.
    monkeypatch.setattr(Roster, "spare", property(lambda roster: 0 if roster.busy else roster.pool.available))
    done = CliRunner().invoke(main, ["replay", str(file)])
    assert done.exit_code == 1, done.output
    told = json.loads(CliRunner().invoke(main, ["replay", str(file), "--json"]).stdout)
    at = told["difference"]["entry"]
    assert 0 < at < len(entries) - 1
    assert f"the first difference is behind event {at}," in done.output
    # Both plans are shown, and which of their fields differ.
    lines = done.output.splitlines()
    one, other = (
        next(line for line in lines if line.startswith(f"{name}: step ")) for name in ("recorded", "replayed")
    )
    assert one.removeprefix("recorded") != other.removeprefix("replayed")
    assert any(line.startswith("  slots: (") and " became (" in line for line in lines)
    assert lines[-1] == f"it was recorded by release 0.0.1, this one is {VERSION}"


def test_what_is_no_recording_is_said(tmp_path):
    path = tmp_path / "b"
    path.write_text("hello\n")
    done = CliRunner().invoke(main, ["replay", str(path)])
    assert (done.exit_code, "no recording" in done.output) == (2, True)
