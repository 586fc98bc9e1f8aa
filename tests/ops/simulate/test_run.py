"""Simulations: repeatable, honest about every request, with the plans that the core really makes."""

import pytest

from pillion.ops.simulate.clock import Clock
from pillion.ops.traces import Arrival, Between, Closed, Shape
from pillion.scheduler.core import Core
from pillion.scheduler.messages import SendPlan
from pillion.scheduler.policies import POLICIES


def plans(core):
    return [each.plan for commands in core.commands for each in commands if isinstance(each, SendPlan)]


def test_the_clock_calls_in_order_and_at_one_time_as_asked():
    clock, called = Clock(), []

    def call(name: str) -> None:
        called.append((name, clock.now))

    clock.at(2.0, call, "late")
    clock.at(1.0, lambda: clock.at(0.5, call, "past"))
    clock.at(1.0, call, "a")
    clock.at(1.0, call, "b")
    clock.run(lambda: True)
    assert called == [("a", 1.0), ("b", 1.0), ("past", 1.0), ("late", 2.0)]


def test_the_same_seed_gives_the_same_result_and_another_does_not(sim, cores):
    results = [sim.simulate(sim.asked(seed=seed), sim.some(60)) for seed in (1, 1, 2)]
    first, again, other = (result.summary() | {"windows": result.watch.told()} for result in results)
    assert first == again != other
    assert cores[0].events == cores[1].events != cores[2].events
    assert first["requests"]["finished"] == 60


def test_the_plans_are_those_of_a_core_fed_by_hand(sim, cores):
    shape = Shape(Between(20, 60), Between(100, 200))
    sim.simulate(sim.asked(blocks=120), sim.some(40, rate=100.0, shape=shape))
    recorded = cores[0]
    assert recorded.snapshot().preemptions > 0
    core = Core(sim.asked().config.scheduler)
    for (event, now), commands in zip(recorded.events, recorded.commands, strict=True):
        assert core.handle(event, now) == commands
    assert len(plans(recorded)) > 100


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("seed", range(4))
def test_every_block_is_accounted_for_under_every_policy(sim, cores, policy, seed):
    """`Recorder` checks after each event. Small pools, so that sequences are preempted."""
    groups = (
        Arrival(
            one.at, one.prompt, one.output, group=index % 3, prefix=min(64, one.prompt), priority=index % 2
        )
        for index, one in enumerate(sim.some(40, rate=60.0, seed=seed))
    )
    small = sim.asked(
        scheduler={"policy": policy, "max_num_seqs": 8 + 8 * seed}, blocks=80, size=8, seed=seed
    )
    result = sim.simulate(small, groups)
    assert result.tally.results == {"finished": 40}
    assert result.counters["hit_tokens"] > 0
    assert cores[0].snapshot().referenced_blocks == 0 and not cores[0]._requests


def test_requests_arrive_wait_run_and_end_as_late_as_the_ways_say(sim):
    """One request, nothing else: each part of its time by itself."""
    model = sim.step_time(ratios=())
    result = sim.simulate(
        sim.asked(model=model, scheduler={"multi_step_seconds": 0.0}), iter([Arrival(3.0, 64, 3)])
    )
    ways, chunk, decode = model.ways, 0.01 + 0.0064, 0.0101
    tally = result.tally
    assert tally.delay.most == pytest.approx(ways.inward + ways.turn / 2)
    assert tally.ttft.most == pytest.approx(ways.inward + ways.turn / 2 + chunk + ways.outward)
    # The first plan is thought to take longer than it does, so the second comes after its end.
    assert tally.tbt.most == pytest.approx(decode + ways.turn)
    assert tally.tbt.least == pytest.approx(decode + ways.gap)
    assert result.seconds == 3.0 and result.ended == pytest.approx(3.0 + tally.e2e.most)


def test_two_plans_are_in_flight_and_the_executor_does_not_wait(sim, cores):
    result = sim.simulate(sim.asked(model=sim.step_time(ratios=())), sim.some(60, rate=200.0))
    assert max(core.snapshot().in_flight for core in cores) == 0
    steps = result.watch.summary()
    assert steps["busy_s"] + 0.0003 * steps["steps"] == pytest.approx(result.ended - 0.01, rel=0.03)


def test_a_plan_of_several_steps_brings_its_tokens_together(sim):
    result = sim.simulate(
        sim.asked(model=sim.step_time(ratios=()), scheduler={"multi_step_seconds": 0.1}),
        iter([Arrival(0.0, 16, 60)]),
    )
    assert result.tally.summary(1.0)["coalesced_share"] > 0.5
    assert result.tally.summary(1.0)["output_tokens"] == 60


def test_a_closed_loop_keeps_so_many_at_once(sim):
    many = sim.simulate(sim.asked(), sim.some(50), Closed(4))
    assert many.watch.summary()["most_running"] <= 4 and many.tally.results == {"finished": 50}
    slow = sim.simulate(sim.asked(), sim.some(50), Closed(4, think=1.0))
    assert slow.ended > many.ended + 10.0


def test_what_runs_at_the_end_is_unfinished(sim):
    result = sim.simulate(sim.asked(horizon=1.0), sim.some(500, rate=100.0))
    told = result.tally.summary(1.0)
    assert result.ended == 1.0 and told["unfinished"] > 10 and told["finished"] > 10
    assert told["sent"] == told["finished"] + told["unfinished"] == pytest.approx(100, rel=0.3)


def test_what_can_never_run_is_refused_and_counted(sim):
    result = sim.simulate(sim.asked(blocks=20), iter([Arrival(0.0, 5000, 5), Arrival(0.1, 50, 5)]))
    assert result.tally.results == {"context_length_exceeded": 1, "finished": 1}


def test_windows_are_few_however_long_it_takes(sim):
    arrivals = (Arrival(at * 40.0, 16, 2) for at in range(60))
    result = sim.simulate(sim.asked(), arrivals)
    windows = result.watch.told()
    assert result.watch.width >= 16 and len(windows) <= 240 < result.ended
    assert (
        sum(window["steps"] for window in windows)
        == result.watch.summary()["steps"]
        == result.counters["steps"]
    )


def test_s15_fifty_short_prompts_behind_a_long_one(sim):
    model = sim.step_time(rows=sim.Curve((1, 1000), (0.0105, 0.51)), ratios=())
    shorts = [Arrival(1.0 + index / 1000, 20, 4) for index in range(50)]
    result = sim.simulate(
        sim.asked(model=model, scheduler={"max_num_batched_tokens": 128, "max_num_seqs": 64}),
        iter([Arrival(0.0, 2000, 4), *shorts]),
    )
    alone = 2000 / 128 * 0.074
    assert result.tally.results == {"finished": 51}
    assert result.tally.ttft.most < alone + 1.0 + 50 * 20 / 64 * 0.074  # the last of the short ones
    assert result.tally.ttft.quantile(0.5) < alone


def test_s47_a_chat_does_not_wait_two_grown_steps(sim, cores):
    model = sim.step_time(rows=sim.Curve((1, 1000), (0.0055, 0.505)), tile=64, ratios=())
    settings = {"max_num_batched_tokens": None, "slo_tbt": 0.1}
    wide = sim.asked(model=model, scheduler=settings, blocks=4097)
    result = sim.simulate(wide, iter([Arrival(0.0, 20_000, 2), Arrival(3.0, 10, 20, priority=-1)]))
    grown = max(plan.tokens for plan in plans(cores[0]))
    assert grown > 300  # with nothing to protect, steps grow over the target
    assert result.tally.ttft.least < 2 * (0.005 + 0.0005 * grown) + 0.004
    # Protected from then on. The first gap may still hold what was in flight.
    chat = [plan for plan in plans(cores[0]) if plan.decodes][1:]
    assert len(chat) > 15 and max(0.005 + 0.0005 * plan.tokens for plan in chat) <= 0.11


def test_a_scheduler_that_knows_its_steps_keeps_their_target_from_the_first(sim, cores):
    model = sim.step_time(ratios=())
    tight = {"max_num_batched_tokens": None, "slo_tbt": 0.03}
    burst = [Arrival(index / 100, 300, 20) for index in range(30)]
    for known in (model, None):
        sim.simulate(sim.asked(model=model, scheduler=tight, known=known), iter(burst))
    assert cores[0].snapshot().cost_model == model.hash and cores[1].snapshot().cost_model == ""
    first_known, first_learned = (plans(core)[0].tokens for core in cores)
    assert (
        first_known == 300 > first_learned
    )  # with nothing to protect 60 ms may pass: it knows that all fits
    assert max(plan.tokens for plan in plans(cores[0]) if plan.decodes) <= 208  # 10 ms + 0.1 ms a row


def test_prefixes_of_a_group_are_found(sim):
    shape = Shape(Between(200, 300), Between(2, 4))
    groups = (
        Arrival(one.at, one.prompt, one.output, group=index % 2, prefix=160)
        for index, one in enumerate(sim.some(40, rate=5.0, shape=shape))
    )
    result = sim.simulate(sim.asked(), groups)
    told = result.summary()
    assert result.counters["hit_tokens"] >= 36 * 160
    assert told["requests"]["cached_tokens"] == result.counters["hit_tokens"]


def test_lower_priorities_wait_longer(sim, cores):
    arrivals = (Arrival(index / 1000, 200, 10, priority=index % 2) for index in range(60))
    sim.simulate(sim.asked(scheduler={"priority_ageing": 1000.0, "max_num_seqs": 4}), arrivals)
    order = [take.request.priority for plan in plans(cores[0]) for take in plan.take]
    assert len(order) >= 60 and sum(order[:25]) < 5 and sum(order[-25:]) == 25
