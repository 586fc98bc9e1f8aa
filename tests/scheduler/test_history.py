"""What the history says of requests, against virtual time in which everything is known."""

import random
from itertools import pairwise

import pytest

from pillion.contracts.entries import encode
from pillion.contracts.timeline import FAILED, LOST, PREEMPTED, TAKEN
from pillion.scheduler import history, memory
from pillion.scheduler.history import History


@pytest.fixture
def watched(make, toy):
    """A drive whose history is kept; timelines of what ended are in `.told`."""

    def build(options=None, executor=None, step_time=None):
        drive = make(options, executor, step_time, connect=False)
        drive.history = History(toy.settings(**(options or {})))
        drive.told = {}

        def heard(event, now, commands):
            drive.history.heard(event, now, commands)
            for command in commands:
                for request in (*getattr(command, "finished", ()), *getattr(command, "parked", ())):
                    drive.told[request] = drive.history.close(request, "0", 0.0, 100.0)

        drive.listeners.append(heard)
        drive.connect()
        return drive

    return build


def only(timeline):
    (choice,) = timeline.choices
    return choice


def test_a_long_chunk_is_the_worst_gap_of_who_decodes(watched, toy):
    drive = watched(
        {"slo_tbt": None, "max_num_batched_tokens": 512, "multi_step_seconds": 0.0},
        step_time=lambda plan: 0.002 + plan.tokens / 1000,
    )
    drive.submit(toy.request("a", toy.prompt(10), max_tokens=30, ignore_eos=True))
    drive.until(0.05)
    drive.submit(toy.request("long", toy.prompt(400, 1), max_tokens=2))
    drive.run()
    choice = only(drive.told["a"])
    gap = choice.gaps[0]
    times = drive.times["a", 0]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gap.seconds == pytest.approx(max(gaps))
    assert gap.position == gaps.index(max(gaps)) + 1
    assert gap.began == pytest.approx(100 + times[gap.position - 1])
    (step,) = gap.steps
    assert (step.decodes, step.chunks, step.own) == (1, (400,), 1)
    assert step.seconds == pytest.approx(0.403)
    assert [other.seconds for other in choice.gaps] == sorted((g.seconds for g in choice.gaps), reverse=True)
    assert len(choice.gaps) == memory.GAPS
    assert [(span.ended, span.gaps, span.longest) for span in choice.spans] == [
        (pytest.approx(100 + at), 1, pytest.approx(seconds))
        for at, seconds in zip(times[1:], gaps, strict=True)
    ]
    late = only(drive.told["long"])
    assert (late.prompt, late.cached, late.tokens, late.running) == (400, 0, 2, 1)
    assert [(chunk.chunks, chunk.own) for chunk in late.chunks] == [((400,), 400)]
    assert late.planned == pytest.approx(step.sent)


def test_all_gaps_are_told_in_a_bounded_number_of_spans():
    spans, told, at = memory.Spans(), [], 0.0
    for count in range(1, 1001):
        seconds = 0.5 if count == 700 else 0.01 + 0.001 * (count % 7)
        at += seconds
        told.append((at, seconds))
        spans.add(at, seconds)
        seen = spans.seen(100.0)
        assert len(seen) <= memory.SPANS and sum(span.gaps for span in seen) == count
        assert len({span.gaps for span in seen[:-1]}) <= 1 and seen[-1].ended == 100.0 + at
    before = 0
    for span in seen:
        of = told[before : before + span.gaps]
        assert (span.ended, span.longest) == (100.0 + of[-1][0], max(seconds for _, seconds in of))
        before += span.gaps
    assert len(seen) > memory.SPANS / 2 - 1 and max(span.longest for span in seen) == 0.5


def test_preemption_shows_in_the_gap_and_in_the_counts(watched, toy):
    drive = watched(
        {"max_num_seqs": 4, "multi_step_seconds": 0.0},
        {"block_size": 4, "num_blocks": 16, "max_model_len": 61},
        step_time=lambda plan: plan.tokens / 1000,
    )
    drive.submit(
        *(
            toy.request(name, toy.prompt(12, n), max_tokens=30, ignore_eos=True, arrival=float(n))
            for n, name in enumerate("abc")
        )
    )
    drive.run()
    assert drive.core.snapshot().preemptions > 0
    told = [only(timeline) for timeline in drive.told.values()]
    assert sum(choice.preemptions for choice in told) == drive.core.snapshot().preemptions
    victims = [choice for choice in told if choice.preemptions]
    for choice in victims:
        gap = choice.gaps[0]
        assert [mark for mark, _ in gap.marks][:2] == [PREEMPTED, TAKEN]
        assert gap.began <= gap.marks[0][1] <= gap.marks[1][1] <= gap.began + gap.seconds
        assert len(gap.steps) <= memory.GAP_STEPS
        assert any(step.own for step in gap.steps) and any(not step.own for step in gap.steps)
        assert choice.recomputed > 0
    assert {choice.choice for choice in told} == {0}


def test_what_a_wait_was_for(watched, toy):
    drive = watched({"max_num_seqs": 2, "multi_step_seconds": 0.0})
    drive.submit(*(toy.request(str(n), toy.prompt(20, n), max_tokens=6, ignore_eos=True) for n in range(4)))
    drive.run()
    waits = {name: only(timeline) for name, timeline in drive.told.items()}
    assert [waits[str(n)].ahead for n in range(4)] == [0, 0, 1, 2]
    assert waits["0"].no_slot == 0
    assert waits["3"].no_slot > 2 and waits["3"].full == 0
    drive = watched({"max_num_batched_tokens": 16, "multi_step_seconds": 0.0})
    drive.submit(*(toy.request(str(n), toy.prompt(64, n), max_tokens=2) for n in range(3)))
    drive.run()
    last = only(drive.told["2"])
    assert last.full > 2 and last.no_slot == 0


@pytest.mark.parametrize(("what", "mark"), [("lose", LOST), ("fail", FAILED)])
def test_a_lost_executor_and_a_failed_step_are_told_apart(watched, toy, what, mark):
    drive = watched({"multi_step_seconds": 0.0})
    drive.submit(toy.request("a", toy.prompt(20), max_tokens=12, ignore_eos=True))
    for _ in range(5):
        drive.finish_step()
    if what == "lose":
        drive.disconnect()
        drive.now += 1.0
        drive.connect()
    else:
        drive.finish_step(fail=True)
    drive.run()
    gap = only(drive.told["a"]).gaps[0]
    assert [name for name, _ in gap.marks] == [mark, TAKEN]
    assert only(drive.told["a"]).preemptions == 0


def test_a_running_request_is_told_of_and_nothing_is_kept_of_those_that_ended(watched, toy):
    drive = watched()
    drive.submit(toy.request("a", toy.prompt(20), max_tokens=50, ignore_eos=True, n=6))
    for _ in range(6):
        drive.finish_step()
    timeline = drive.history.timeline("a", "0", 5.0, 100.0)
    assert (timeline.replica, timeline.forwarded, timeline.more) == ("0", 5.0, 2)
    assert len(timeline.choices) == history.CHOICES
    assert len(encode(timeline)) < 4000
    drive.submit(toy.request("late", toy.prompt(9)))
    drive.cancel("late")
    drive.park("a")
    drive.run()
    assert set(drive.told) == {"a", "late"}
    kept = drive.history
    assert (kept._live, kept._flights, kept._waiting) == ({}, {}, 0)
    assert drive.history.timeline("a", "0", 5.0, 100.0) is None


def test_random_orders_leave_nothing_behind_and_times_add_up(toy, watched):
    marks = set()
    for seed in range(12):
        draw = random.Random(seed)
        drive = watched(
            {"max_num_seqs": 3, "max_num_batched_tokens": (None, 8)[seed % 2]},
            {"block_size": 4, "num_blocks": 30, "max_model_len": 100, "tile": 4},
        )
        for count in range(40):
            match draw.choice(("submit", "step", "step", "fail", "cancel", "park", "lose", "wait")):
                case "submit":
                    drive.submit(
                        toy.request(str(count), toy.prompt(draw.randint(1, 50), count), n=draw.randint(1, 2))
                    )
                case "step" | "fail" as what if drive.in_flight:
                    drive.finish_step(fail=what == "fail")
                case "cancel" if drive.requests:
                    drive.cancel(draw.choice(list(drive.requests)))
                case "park" if drive.requests:
                    drive.park(draw.choice(list(drive.requests)))
                    for name in tuple(drive.parked):
                        drive.take_up(name)
                case "lose":
                    drive.disconnect()
                    drive.connect()
                case "wait":
                    drive.until(drive.now + draw.random() / 100)
            assert drive.history._waiting == drive.core.snapshot().waiting
        drive.run()
        assert (drive.history._live, drive.history._waiting) == ({}, 0)
        for timeline in drive.told.values():
            for choice in timeline.choices:
                for gap in choice.gaps:
                    marks |= {mark for mark, _ in gap.marks}
                    assert gap.seconds > 0
    assert marks >= {PREEMPTED, LOST, FAILED, TAKEN} - {PREEMPTED}
