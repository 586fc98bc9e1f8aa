"""Several decode steps in one plan: when, how many, and what stands where they end early."""

from itertools import pairwise

import pytest

from pillion.config import Scheduler
from pillion.contracts.entries import Control, StepLimits
from pillion.scheduler.messages import Ordered
from pillion.scheduler.repeat import FEW, MOST
from pillion.steptime import Work

STEP = 0.0033  # seconds
LONGEST = Scheduler().multi_step_seconds


def alone(make, toy, options=None, executor=None, count=1, plans=20, **fields):
    """A driver in which so many requests run and nothing else, its cost model taught by so many plans."""
    drive = make(options or {}, executor or {}, lambda plan: STEP)
    fields = {"max_tokens": 200, "ignore_eos": True} | fields
    drive.submit(*(toy.request(str(i), toy.prompt(20, i), seed=i, **fields) for i in range(count)))
    while drive.core.snapshot().decoding < count or len(drive.plans) < plans:
        drive.advance()
    return drive


def most_steps(drive, plans=30):
    """The most steps of any of the next plans."""
    at = len(drive.plans)
    while len(drive.plans) < at + plans and drive.advance():
        pass
    return max(plan.steps for plan in drive.plans[at:])


def test_they_fit_in_the_time_with_all_that_is_in_flight(make, toy):
    drive = alone(make, toy)
    flights = []
    handle = drive.handle

    def watched(event):
        handle(event)
        if drive.in_flight:
            behind = sum(plan.steps for plan in drive.in_flight) - drive.in_flight[0].steps
            flights.append(drive.ends + behind * STEP - drive.now)

    drive.handle = watched
    assert most_steps(drive) == 5  # six would fit by themselves, but something is in flight before them
    assert max(flights) <= LONGEST + STEP / 20
    drive.run()
    drive.check_outputs()
    assert len(drive.plans) < 70  # for 200 tokens
    assert sum(sum(plan.samples) for plan in drive.plans) == 200


@pytest.mark.parametrize(
    "options, most",
    [
        ({"multi_step_seconds": 0.0}, 1),
        ({"multi_step_seconds": 0.008}, 2),
        ({"slo_tbt": 0.0115}, 3),  # a plan's tokens come together, so that the gap before them is as long
        ({"multi_step_seconds": 1.0}, MOST),
    ],
)
def test_how_many(make, toy, options, most):
    drive = alone(make, toy, options, max_tokens=600)
    assert most_steps(drive) == most
    drive.run()
    drive.check_outputs()


def test_an_administrators_target_holds_for_them_too(make, toy):
    drive = alone(make, toy, max_tokens=600)
    for target, most in ((0.008, 2), (None, 5)):
        drive.handle(Ordered(Control(epoch=1, limits=StepLimits(None, target))))
        most_steps(drive, plans=2)  # those in flight
        assert most_steps(drive) == most
    drive.run()
    drive.check_outputs()


@pytest.mark.parametrize("count, several", [(FEW, True), (FEW + 1, False)])
def test_only_a_few_run(make, toy, count, several):
    drive = alone(make, toy, count=count)
    assert (most_steps(drive) > 1) is several
    drive.run()
    drive.check_outputs()


def test_an_arrival_waits_no_longer_than_that_and_ends_it(make, toy):
    drive = alone(make, toy, max_tokens=600)
    most_steps(drive)
    for number in range(9):
        drive.until(drive.now + 0.013)
        name, came = f"late {number}", drive.now
        at = len(drive.plans)
        drive.submit(toy.request(name, toy.prompt(30, 50 + number), arrival=came, max_tokens=1))
        while name not in drive.finished:
            drive.advance()
        assert drive.times[name, 0][0] - came <= LONGEST + STEP + 1e-9
        (first,) = [plan for plan in drive.plans[at:] if any(t.request.id == name for t in plan.take)]
        assert first.steps == 1
        # Its prompt is whole with this plan; the step behind it may be one of several again.
    assert most_steps(drive) > 1
    drive.run()
    drive.check_outputs()


def test_nobody_gets_more_than_it_may(make, toy):
    drive = alone(make, toy, {"multi_step_seconds": 1.0}, count=2)
    drive.submit(toy.request("short", toy.prompt(9, 7), max_tokens=13, ignore_eos=True, arrival=1.0))
    at = len(drive.plans)
    drive.run()
    drive.check_outputs()
    (slot,) = (take.slot for plan in drive.plans[at - 1 :] for take in plan.take)
    rows = [pair for plan in drive.plans[at:] for pair in zip(plan.slots, plan.samples, strict=True)]
    assert [sample for of, sample in rows if of == slot] == [1, MOST, 13 - 1 - MOST]


def test_nobody_holds_more_blocks_than_it_fills(make, toy):
    drive = alone(make, toy, {"multi_step_seconds": 1.0}, {"block_size": 4}, plans=1, max_tokens=33)
    drive.run()
    drive.check_outputs()
    assert max(plan.steps for plan in drive.plans) > 1
    taken = sum(len(take.blocks) for plan in drive.plans for take in plan.take)
    assert taken + sum(len(plan.blocks) for plan in drive.plans) == (20 + 33 - 1) // 4


def test_while_somebody_waits_a_plan_is_one_step(make, toy):
    """For a slot; and for a block to go on with its prompt."""
    drive = alone(make, toy, {"max_num_seqs": 1})
    drive.submit(toy.request("next", toy.prompt(20, 9), arrival=1.0, max_tokens=90, ignore_eos=True))
    most_steps(drive, plans=2)
    assert most_steps(drive) == 1 == drive.core.snapshot().waiting
    drive.run()
    assert drive.plans[-5].steps > 1
    drive.check_outputs()

    executor = {"num_blocks": 19, "block_size": 4, "max_model_len": 72, "tile": 1}
    drive = make({"watermark": 0.0, "max_num_batched_tokens": 9}, executor, lambda plan: STEP / 4)
    drive.submit(toy.request("a", toy.prompt(8, 1), max_tokens=60, ignore_eos=True))
    while len(drive.plans) < 3:
        drive.advance()
    drive.submit(toy.request("b", toy.prompt(56, 2), arrival=1.0, max_tokens=2, ignore_eos=True))
    stuck, at = 0, len(drive.plans)
    while drive.advance():
        if drive.core.snapshot().prefilling:
            assert all(plan.steps == 1 for plan in drive.plans[at:])
            stuck += any(plan.decodes == len(plan.slots) for plan in drive.plans[at:])
        at = len(drive.plans)
    assert stuck == 3
    drive.check_outputs()


def test_without_blocks_for_them_nobody_is_preempted(make, toy):
    executor = {"num_blocks": 14, "block_size": 4, "max_model_len": 52, "tile": 1}
    drive = make({"watermark": 0.0, "multi_step_seconds": 1.0}, executor, lambda plan: STEP)
    drive.submit(
        toy.request("a", toy.prompt(10, 1), max_tokens=17, ignore_eos=True),
        toy.request("b", toy.prompt(10, 2), max_tokens=17, ignore_eos=True, seed=1),
    )
    lowest = 13
    while drive.advance():
        snapshot = drive.core.snapshot()
        lowest = min(lowest, snapshot.free_blocks + snapshot.cached_blocks)
    drive.check_outputs()
    assert lowest == 0 and drive.core.snapshot().preemptions == 0
    assert max(plan.steps for plan in drive.plans) > 1


def test_ends_within_a_plan(make, toy):
    """What is granted behind an end is not run, and the cost model learns the time of what was."""
    drive = alone(make, toy, {"multi_step_seconds": 1.0}, plans=1, max_tokens=20)
    drive.run()
    ended = 0
    for number in range(40):
        drive.submit(toy.request(f"x{number}", toy.prompt(9, 100 + number), seed=number, max_tokens=60))
        drive.run()
        ended += drive.streams[f"x{number}", 0].finish == "stop"
    drive.check_outputs()
    assert ended > 10
    granted = sum(sum(plan.samples) for plan in drive.plans)
    assert granted > sum(len(stream.tokens) for stream in drive.streams.values())
    assert drive.core._budget.cost.predict(Work(1, 1, 40)) == pytest.approx(STEP, rel=0.05)


def test_cancelled_within_a_plan_everything_is_free_at_once(make, toy):
    drive = alone(make, toy, count=2)
    while drive.in_flight[0].steps == 1:
        drive.advance()
    drive.cancel("0")
    drive.cancel("1")
    assert drive.core.snapshot().referenced_blocks == drive.core.snapshot().running == 0
    late = drive.core.snapshot().late_results
    drive.submit(toy.request("next", toy.prompt(20, 9)))
    drive.run()
    drive.check_outputs("next")
    assert drive.core.snapshot().late_results - late >= 2


def test_a_plan_that_fails_is_computed_again(make, toy):
    drive = alone(make, toy, count=2)
    for _ in range(2):
        while drive.in_flight[0].steps == 1:
            drive.advance()
        drive.finish_step(fail=True)
        drive.finish_step()
    drive.run()
    drive.check_outputs()
    assert drive.core.snapshot().failed_steps == 2


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_generated_blocks_are_found_by_who_comes_after(make, toy, seconds):
    drive = alone(make, toy, {"multi_step_seconds": seconds}, {"block_size": 4}, plans=1, max_tokens=59)
    drive.run()
    assert (max(plan.steps for plan in drive.plans) > 1) is bool(seconds)
    known = (*toy.prompt(20, 0), *drive.output("0"))
    drive.submit(toy.request("again", known, max_tokens=1))
    drive.run()
    drive.check_outputs()
    assert drive.streams["again", 0].cached == 76  # of 79; the last token was never computed


def test_preempted_with_several_in_flight(make, toy):
    small = {"num_blocks": 25, "block_size": 4, "max_model_len": 96, "tile": 1}
    drive = make({"multi_step_seconds": 1.0}, small, lambda plan: STEP)
    drive.submit(toy.request("low", toy.prompt(30, 3), priority=1, seed=5, max_tokens=60, ignore_eos=True))
    while not drive.in_flight or drive.in_flight[0].steps < MOST:
        drive.advance()
    before = len(drive.streams["low", 0].tokens)
    drive.submit(toy.request("high", toy.prompt(70, 2), priority=0, arrival=1.0))
    while not drive.core.snapshot().preemptions:
        drive.advance()
    drive.run()
    drive.check_outputs()
    (_, again) = [plan.take[0] for plan in drive.plans if plan.take and plan.take[0].request.id == "low"]
    assert len(again.tokens) >= 30 + before + MOST


def test_positions_follow_each_other(make, toy):
    drive = alone(make, toy, max_tokens=600)
    most_steps(drive)
    (last,) = list(drive.core._flights)[-1].ends  # above suspicion is who comes further than this
    assert last == drive.plans[-1].starts[0] + drive.plans[-1].steps and drive.plans[-1].steps > 1
    drive.run()
    for one, two in pairwise(drive.plans[-10:]):
        assert two.starts[0] == one.starts[0] + one.samples[0]
