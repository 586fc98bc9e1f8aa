"""What a replay's report shows is what the replayed steps were, over one part or several."""

from itertools import pairwise

import msgspec
import pytest
from click.testing import CliRunner

from pillion.ops.cli import main
from pillion.ops.replay import watching
from pillion.ops.replay.replaying import Seen, replay
from pillion.ops.replay.watching import KINDS, Watch
from pillion.ops.report import read
from pillion.scheduler import recorded
from pillion.scheduler.core import Core
from pillion.scheduler.messages import Disconnected, SendPlan, StepDone, StepFailed
from pillion.scheduler.recorded import GOES_ON
from pillion.scheduler.roster import Roster
from tests.ops.replay.test_replay import Parts, recorded_run, steps_of
from tests.scheduler import conftest as toy

OPTIONS = {"max_num_batched_tokens": 24, "max_num_seqs": 4}
SUMS = ("steps", "seconds", "decodes", "prompts", "budget")


class Kept:
    """What was heard, and the core's own words."""

    def __init__(self, core):
        self.core, self.heard = core, []

    def __call__(self, event, now, commands):
        self.heard.append((event, now, list(commands), self.core.snapshot(now)))


def ran(kept):
    """The sums over all steps that came back, and of what stood, times its seconds."""
    sums, flights, count, waiting, used = dict.fromkeys(SUMS, 0.0), {}, 0, 0.0, 0.0
    for event, _, commands, _ in kept:
        if isinstance(event, StepDone) and event.step in flights and event.steps:
            plan = flights.pop(event.step)
            count += 1
            of = (event.steps, event.seconds, plan.decodes * event.steps, sum(plan.counts[plan.decodes :]))
            for name, value in zip(SUMS, (*of, plan.budget * event.steps), strict=True):
                sums[name] += value
        elif isinstance(event, Disconnected):
            flights.clear()
        flights |= {one.plan.step: one.plan for one in commands if isinstance(one, SendPlan)}
    for (_, begin, _, stood), (_, end, *_) in pairwise(kept):
        waiting += stood.waiting * (end - begin)
        used += stood.referenced_blocks / (stood.blocks or 1) * (end - begin)
    return sums, count, waiting, used


def totals(watch):
    rows = watch.windows.told()
    return {name: sum(row[name] for row in rows) for name in watch.windows.names}


def test_windows_hold_what_steps_carried_and_what_stood():
    lost = failed = 0
    for seed in range(8):
        kept = []
        entries, _ = recorded_run(
            steps_of(seed), lambda core, kept=kept: kept.append(Kept(core)) or kept[0], **OPTIONS
        )
        watch, core, seen = Watch(), Core(toy.settings(**OPTIONS)), Seen()
        watch.begin("a", recorded.Header("0.1.0", "0", 1e9, toy.settings(**OPTIONS)), core, seen)
        for _ in replay(core, entries, seen, watch.heard):
            pass
        sums, count, waiting, used = ran(kept[0].heard)
        told = totals(watch)
        assert {name: told[name] for name in SUMS} == {name: pytest.approx(sums[name]) for name in SUMS}
        assert (told["waiting"], told["in_use"]) == (pytest.approx(waiting), pytest.approx(used))
        assert told["covered"] == pytest.approx(kept[0].heard[-1][1] - kept[0].heard[0][1])
        assert len(watch.steps) == count and sum(took for *_, took in watch.steps) <= sums["seconds"] + 1e-9
        assert {kind for kind, *_ in watch.steps} <= set(KINDS)
        events = [event for event, *_ in kept[0].heard]
        lost += sum(what == "executor lost" for _, what in watch.marks)
        failed += sum(what == "a step failed" for _, what in watch.marks)
        assert len(watch.marks) == min(sum(isinstance(e, Disconnected | StepFailed) for e in events), 8)
    assert min(lost, failed) > 0


def test_of_many_steps_some_are_kept_one_by_one(monkeypatch):
    monkeypatch.setattr(watching, "_POINTS", 8)
    entries, _ = recorded_run(steps_of(3), **OPTIONS)
    watch, core, seen = Watch(), Core(toy.settings(**OPTIONS)), Seen()
    watch.begin("a", recorded.Header("0.1.0", "0", 1e9, toy.settings(**OPTIONS)), core, seen)
    for _ in replay(core, entries, seen, watch.heard):
        pass
    done = sum(entry.kind == "StepDone" for entry in entries)
    assert done > 24 and watch.every > 1 and len(watch.steps) <= 8
    assert len(watch.steps) == pytest.approx(done / watch.every, abs=2)


@pytest.fixture
def run(tmp_path):
    """A life in two parts, the same in one, and its length in seconds."""
    parts = []
    entries, _ = recorded_run(steps_of(5), lambda core: parts.append(Parts(core, 40)) or parts[0], **OPTIONS)
    at, held, _, behind = parts[0].begun[0]
    header = recorded.Header("0.1.0", "0", 1e9, toy.settings(**OPTIONS), life=1e9)
    later = msgspec.structs.replace(header, started=1e9 + behind[0].now - entries[0].now, part=1, core=held)
    folder = tmp_path / "parts"
    folder.mkdir()
    for path, head, some, why in (
        (folder / "a.rec", header, entries[:at], GOES_ON),
        (folder / "b.rec", later, behind, "the scheduler ended"),
        (tmp_path / "whole.rec", header, entries, "the scheduler ended"),
    ):
        ends = [recorded.end(some[-1].now, why)]
        path.write_bytes(recorded.MAGIC + b"".join(map(recorded.frame, (head, list(some), ends))))
    return folder, tmp_path / "whole.rec", entries[-1].now - entries[0].now


def invoke(path, out):
    return CliRunner().invoke(main, ["replay", str(path), "--report", str(out)])


def test_parts_are_one_recording_and_the_page_has_the_verdict(run, tmp_path):
    folder, whole, seconds = run
    for path, out in ((folder, "parts"), (whole, "whole")):
        done = invoke(path, tmp_path / out)
        assert done.exit_code == 0, done.output
        assert done.stderr.splitlines()[0] == f"written: {tmp_path / out}.html"
    parts, one = read(tmp_path / "parts"), read(tmp_path / "whole")
    assert parts.title == "Replay of 2 parts: every plan is the same"
    assert one.title == "Replay of whole.rec: every plan is the same"
    assert [row[0] for row in parts.tables[0].rows] == ["a.rec", "b.rec"] and not parts.notes
    for ours, theirs in zip(parts.summary, one.summary, strict=True):
        assert ours.name == theirs.name and ours.values == pytest.approx(theirs.values), ours.name
    titles = [plot.title for plot in one.plots]
    assert titles == [
        *("What a step carries", "Budget and its use", "Step time", "Took against predicted"),
        *("Queue", "KV blocks"),
    ]  # fmt: skip
    carried, *_, blocks = one.plots
    assert carried.end == blocks.end == pytest.approx(seconds)
    assert all(0 <= sum(shares) <= 1.000001 for _, shares in blocks.rows) and len(blocks.rows) > 1
    assert sum(sum(tokens) for _, tokens in carried.rows) > 0


def test_the_first_difference_is_marked_and_what_is_no_recording_has_no_report(run, tmp_path, monkeypatch):
    _, whole, seconds = run
    monkeypatch.setattr(Roster, "spare", property(lambda roster: 0 if roster.busy else roster.pool.available))
    done = invoke(whole, tmp_path / "other")
    assert done.exit_code == 1, done.output
    made = read(tmp_path / "other")
    assert made.title.startswith("Replay of whole.rec: a plan differs behind event ")
    assert made.title.rpartition(": ")[2] in made.notes[0]
    (difference,) = [table for table in made.tables if table.title == "The first difference"]
    assert {"recorded", "replayed"} <= {row[0] for row in difference.rows}
    for plot in (made.plots[0], made.plots[-1]):
        assert plot.marks[-1].label == "the first difference" and 0 < plot.marks[-1].value < seconds
    (tmp_path / "bad.rec").write_text("hello\n")
    done = invoke(tmp_path / "bad.rec", tmp_path / "none")
    assert done.exit_code == 2 and not (tmp_path / "none.html").exists()
    done = invoke(whole, tmp_path / "bad.rec" / "deeper")
    assert done.exit_code == 2 and "cannot write the report" in done.stderr
