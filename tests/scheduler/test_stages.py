"""Executors of several stages: as many plans run beside each other, and one is prepared behind them."""

from collections import Counter
from itertools import pairwise

import pytest

from pillion import config
from pillion.contracts.entries import Facts
from pillion.scheduler import policies
from pillion.scheduler.budget import Budget
from pillion.scheduler.flights import LEAD_FALL, LEAD_MIN, Flight, Flights
from pillion.scheduler.outlook import outlook
from pillion.steptime import Curve, StepTime, Work


def flight(step: int, sent: float, predicted: float, pipelined: bool | None = True) -> Flight:
    return Flight(step, [], (), Work(1), sent, predicted, pipelined)


def two(*flights: Flight) -> Flights:
    made = Flights()
    made.attach(2)
    made.extend(flights)
    return made


def test_when_a_plan_can_begin():
    flights = two(flight(1, 0.0, 20.0))
    assert flights.begins == 10.0 and not flights.full  # half of the step is the first stage's
    flights.append(flight(2, 9.0, 2.0))
    assert flights.begins == 20.0  # the first stage is free at 11, the first plan's tokens are there at 20
    flights.append(flight(3, 19.9, 2.0))
    assert flights.full
    assert flights.land(2, 20.5) is None and len(flights) == 3
    assert flights.land(1, 20.5) is not None
    assert flights.begins == 21.5  # when the second's tokens are there, half a second later than was foretold
    assert flights.overdue(21.0) == 0.0 and flights.overdue(23.0) == pytest.approx(1.5)


def test_one_stage_counts_from_when_the_plan_before_returned():
    flights = Flights()
    flights.append(flight(1, 1.0, 2.0))
    assert flights.begins == 3.0 and flights.due == 3.0 - LEAD_MIN
    flights.append(flight(2, 2.9, 2.0))
    assert flights.full and flights.land(1, 3.5) is not None and flights.begins == 5.5


def test_the_lead_follows_waits_that_an_earlier_plan_would_have_spared():
    flights = two()
    assert flights.pipelined(0.0) is False
    flights.append(flight(1, 0.0, 20.0))
    assert flights.pipelined(9.0) is True and flights.pipelined(11.0) is None
    flights.append(flight(2, 11.0, 2.0))
    assert flights.pipelined(15.0) is True  # its tokens are waited for
    flights.adjust(flight(1, 0.0, 20.0, None), 30.0, 20.0, 5.0)
    assert flights.lead == LEAD_MIN
    flights.adjust(flight(1, 0.0, 20.0, True), 30.0, 20.0, 0.004)
    assert flights.lead == pytest.approx(LEAD_MIN + 0.004)
    flights.adjust(flight(1, 0.0, 20.0, False), 20.001, 20.0, 9.0)
    assert flights.lead == pytest.approx((LEAD_MIN + 0.004) * LEAD_FALL)


@pytest.mark.parametrize(
    ("stages", "count", "sizes"), [(1, 6, {6}), (2, 6, {3}), (4, 8, {2}), (4, 6, {1, 2})]
)
def test_steps_share_the_decodes_equally_and_each_stream_is_in_each_round(make, toy, stages, count, sizes):
    drive = make(
        {"multi_step_seconds": 0.0, "max_num_batched_tokens": 32},
        {"pp": stages},
        step_time=lambda plan: 0.01 * stages,
    )
    drive.submit(
        *(toy.request(str(n), toy.prompt(20, n), max_tokens=60, ignore_eos=True) for n in range(count))
    )
    drive.until(0.3 * stages)
    late = drive.plans[-8 * stages : -1]
    for at in range(len(late) - stages + 1):
        round_ = late[at : at + stages]
        assert {plan.decodes for plan in round_} == sizes and sum(plan.decodes for plan in round_) == count
        named = Counter(slot for plan in round_ for slot in plan.slots)
        assert len(named) == count and set(named.values()) == {1}
    for times in drive.times.values():  # no stage waits: a token each time that all stages have done a step
        gaps = [after - before for before, after in pairwise(times[-9:])]
        assert gaps == pytest.approx([0.01 * stages] * len(gaps))
    assert drive.most_in_flight == stages + 1
    drive.run()
    drive.check_outputs()


def test_beside_prompts_nobody_is_moved_to_another_step_for_equal_shares(make, toy):
    """Who is moved waits for one step more. Behind the prompts shares are equal again."""
    drive = make(
        {"max_num_batched_tokens": 16, "multi_step_seconds": 0.0},
        {"pp": 2, "num_blocks": 256},
        step_time=lambda plan: 0.02,
    )
    streams = [str(n) for n in range(8)]
    drive.submit(
        *(
            toy.request(name, toy.prompt(5, n), max_tokens=90, ignore_eos=True)
            for n, name in enumerate(streams)
        )
    )
    drive.until(0.3)
    drive.submit(toy.request("long", toy.prompt(600, 9), max_tokens=1))
    drive.until(0.4)
    assert [plan.decodes for plan in drive.plans[-4:]] == [4] * 4
    gone = sorted({name for name, _ in drive.named[drive.plans[-1].step]} - {"long"})[:2]
    for name in gone:
        drive.cancel(name)
    at = len(drive.plans)
    drive.until(0.6)
    beside = drive.plans[at + 2 :]
    assert len(beside) > 15 and all(len(plan.slots) > plan.decodes for plan in beside)
    assert {plan.decodes for plan in beside} == {2, 4}
    drive.until(1.2)
    assert {plan.decodes for plan in drive.plans[-4:]} == {3}
    drive.run()
    assert drive.streams["long", 0].finish == "length"


def test_a_stream_alone_goes_on_when_its_token_is_there(make, toy):
    drive = make({"multi_step_seconds": 1.0}, {"pp": 4}, step_time=lambda plan: 0.04)
    drive.submit(toy.request("a", toy.prompt(20), max_tokens=10, ignore_eos=True))
    drive.run()
    drive.check_outputs("a")
    assert drive.most_in_flight == 1 and all(plan.steps == 1 for plan in drive.plans)
    assert drive.times["a", 0] == pytest.approx([0.04 * n for n in range(1, 11)])


def test_chunks_of_one_prompt_follow_each_other_through_the_stages(make, toy):
    drive = make({"max_num_batched_tokens": 64}, {"pp": 4}, step_time=lambda plan: 0.04, connect=False)
    drive.connect(measured=known(0.04, 0.0))
    drive.submit(toy.request("a", toy.prompt(256), max_tokens=1))
    drive.run()
    assert [plan.tokens for plan in drive.plans] == [64] * 4
    assert drive.now == pytest.approx(0.01 * 3 + 0.04)  # not four times 0.04


def test_a_plan_is_decided_as_late_as_is_safe(make, toy):
    drive = make({"max_num_batched_tokens": 64}, {"pp": 2}, step_time=lambda plan: 0.2, connect=False)
    drive.connect(measured=known(0.2, 0.0))
    drive.submit(toy.request("a", toy.prompt(64), max_tokens=1))
    drive.submit(toy.request("b", toy.prompt(64, 1), max_tokens=1))
    assert len(drive.in_flight) == 1
    drive.until(0.05)
    drive.submit(toy.request("c", toy.prompt(64, 2), max_tokens=1, priority=-1))
    drive.until(0.1)
    assert [take.request.id for plan in drive.plans for take in plan.take] == ["a", "c"]


def test_a_step_holds_at_most_its_share_of_the_slots(make, toy):
    drive = make({"max_num_seqs": 6, "multi_step_seconds": 0.0}, {"pp": 2}, step_time=lambda plan: 0.01)
    drive.submit(*(toy.request(str(n), toy.prompt(5, n), max_tokens=20) for n in range(9)))
    drive.run()
    drive.check_outputs()
    assert max(len(plan.slots) for plan in drive.plans) == 3


def known(base: float, row: float) -> StepTime:
    return StepTime(base=base, rows=Curve((1, 1001), (row, 1001 * row)), tile=16)


def test_streams_in_other_steps_keep_the_target_too(make, toy):
    drive = make(
        {"slo_tbt": 0.101, "max_step_seconds": 1.0},
        {"pp": 2},
        step_time=lambda plan: 0.02 + 0.001 * plan.tokens,
        connect=False,
    )
    drive.connect(measured=known(0.02, 0.001))
    drive.submit(toy.request("a", toy.prompt(20), max_tokens=100, ignore_eos=True))
    drive.until(0.1)
    drive.submit(toy.request("b", toy.prompt(2000, 1), max_tokens=1))
    drive.until(1.0)
    alone = [plan for plan in drive.plans if plan.decodes == 0 and plan.tokens > 20]
    assert len(alone) > 5
    assert max(plan.tokens for plan in alone) == 80  # though max_step_seconds lets more
    gaps = [after - before for before, after in pairwise(drive.times["a", 0])]
    assert 0.08 < max(gaps) <= 0.101
    drive.run()
    drive.check_outputs()


def test_what_a_plan_may_take_counts_its_waits_at_every_stage():
    flights = two(flight(1, 0.0, 0.4), flight(2, 0.19, 0.6))  # leave the last stage at 0.4 and 0.8
    assert flights.begins == 0.5
    for one in flights:
        one.work = Work(1, 1, sampled=1)
    # It begins at 0.5, and one more like it ends by 0.8 + 1.0: it is halved over the stages, the other adds a
    # half. What goes on for the first's streams ends by 0.4 + 1.0, but half of it runs from 0.8 on.
    assert flights.time_left(1.0, None, 0.39) == pytest.approx((0.8 + 1.0 - 0.5) * 2 / 3)
    assert flights.time_left(0.6, None, 0.39) == pytest.approx((0.4 + 0.6 - 0.8) * 2)
    assert flights.time_left(1.0, 0.05, 0.39) == pytest.approx((0.05 + 1.0 - 0.8) * 2)  # one in no plan
    flights[0].work = Work(64, 0, chunks=1)  # nobody waits for what it brings
    assert flights.time_left(0.6, None, 0.39) == pytest.approx((0.8 + 0.6 - 0.5) * 2 / 3)
    flights[0].work = Work(1, 1, sampled=1)
    assert flights.time_left(0.6, None, 0.45) == pytest.approx((0.45 + 0.6 - 0.8) * 2)  # the first is late
    assert two().time_left(0.6, None, 5.0) == 0.6 and two().time_left(0.6, 4.9, 5.0) == pytest.approx(0.5)


def test_a_plan_waits_for_the_tokens_that_its_decodes_go_on_from():
    flights = two(flight(1, 0.0, 0.4), flight(2, 0.1, 0.1), flight(3, 0.3, 0.2))
    assert flights.begins == 0.4  # the third, begun at 0.3, has left the first stage
    flights[2].work = Work(1, 1, sampled=1)
    assert flights.begins == 0.5  # begun at 0.4, when the first's tokens are there
    assert flights.land(1, 0.42) is not None and flights.begins == pytest.approx(0.52)


def test_one_stage_has_the_whole_target_behind_a_plan_in_flight():
    flights = Flights()
    flights.append(flight(1, 1.0, 2.0))
    flights[0].work = Work(1, 1, sampled=1)
    for now in (2.9, 3.0, 3.5):
        assert flights.time_left(0.6, None, now) == 0.6
    assert flights.time_left(0.6, 2.5, 2.9) == pytest.approx(0.1)


def told(stages: int, decodes: int):
    facts = Facts("m", "f", 4096, 9, (), 16, 1000, 100, 512, 16, "d", "b", pp=stages)
    budget = Budget(config.Scheduler(slo_tbt=0.101, min_prefill_share=0.0), facts, known(0.02, 0.001))
    return outlook(policies.make("stall-free"), budget, decodes, 10 * decodes, 0, 100)


def test_what_full_steps_carry_counts_all_that_run_beside_each_other():
    one, both = told(1, 10), told(2, 20)
    assert both.step_seconds == one.step_seconds == pytest.approx(0.1)
    assert both.prefill_rate == pytest.approx(2 * one.prefill_rate) == pytest.approx(2 * 70 / 0.1)
    assert both.idle_rate == pytest.approx(2 * one.idle_rate)
    assert (one.seats, both.seats) == (80, 100)


def test_a_failed_step_takes_those_behind_it_along_and_blames_its_own_alone(make, toy):
    drive = make({"multi_step_seconds": 0.0}, {"pp": 3}, step_time=lambda plan: 0.03)
    drive.submit(*(toy.request(str(n), toy.prompt(20, n), max_tokens=20, ignore_eos=True) for n in range(3)))
    while len(drive.in_flight) < 4 or any(plan.decodes != 1 for plan in drive.in_flight):
        drive.advance()
    drive.finish_step(fail=True)
    # The sequences of the failed plan are in the fourth as well; the two plans between are lost all the same.
    assert sorted(one.failures for live in drive.core._requests.values() for one in live.sequences) == [
        0,
        0,
        1,
    ]
    assert [flight.lost for flight in drive.core._flights][:3] == [True] * 3
    assert drive.core._roster.running == [] and len(drive.core._waiting) == 3
    drive.run()
    drive.check_outputs()
    assert drive.core.snapshot().failed_steps == 1 and drive.core.snapshot().late_results > 0


def test_who_kills_the_executor_is_found_among_all_that_are_in_flight(make, toy):
    drive = make({"multi_step_seconds": 0.0, "max_num_batched_tokens": 64}, {"pp": 3})
    innocent = [toy.request(str(n), toy.prompt(20, n), max_tokens=30, ignore_eos=True) for n in range(5)]
    drive.submit(*innocent, toy.request("poison", toy.prompt(20, 9), arrival=1.0, max_tokens=30))
    deaths = 0
    while drive.in_flight or drive.wake is not None:
        assert not drive.core._suspects or len(drive.in_flight) <= 1 or drive.core._flights[0].lost
        if drive.in_flight and any(name == "poison" for name, _ in drive.named[drive.in_flight[0].step]):
            deaths += 1
            drive.disconnect()
            drive.connect()
        else:
            drive.advance()
    assert deaths == 4 and drive.streams["poison", 0].finish == "error"
    drive.check_outputs("0", "1", "2", "3", "4")
