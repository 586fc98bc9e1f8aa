"""Stages by hand: two of them, known times, known bubbles of each kind; then real cores over them."""

from dataclasses import replace

import pytest
from msgspec.structs import replace as with_

from pillion.ops.measure.histogram import GROWTH
from pillion.ops.simulate.bubbles import Bubbles
from pillion.ops.simulate.stages import Passage, Stages
from pillion.ops.traces import Between, Shape
from pillion.scheduler.messages import Plan
from pillion.steptime import Curve, Work

CHUNK, DECODE = Work(rows=64, chunks=1), Work(rows=1, decodes=1)


def plan(step: int, slot: int, work: Work, sample: int = 1) -> Plan:
    decodes = work.decodes
    return Plan(step, (), (), (slot,), (0,), (work.rows,), (sample,), (0,), (), decodes, 512)


class Two:
    """Two stages, and plans of one sequence each. `seconds` are of one stage."""

    def __init__(self, hop=lambda rows: 0.0) -> None:
        self.stages = Stages(2, hop)
        self.step = 0

    def run(self, slot: int, work: Work, seconds: float, comes: float = 0.0, gap: float = 0.0) -> Passage:
        self.step += 1
        return self.stages.run(plan(self.step, slot, work), [work], 2 * seconds, comes, gap)


def test_pb1_a_longer_prefill_behind_a_shorter_one():
    two = Two()
    assert two.run(0, CHUNK, 1.0) == Passage(0.0, 2.0, 0.0, (0.0, 0.0, 0.0))
    # The second stage is free from 2 and gets the longer one at 12.
    assert two.run(1, CHUNK, 11.0) == Passage(1.0, 23.0, 0.0, (10.0, 0.0, 0.0))
    assert two.run(2, CHUNK, 1.0) == Passage(12.0, 24.0, 0.0, (0.0, 0.0, 0.0))
    # The first stage is free from 13; what it could run next comes with the longer one's end.
    assert two.run(3, CHUNK, 1.0, comes=23.0) == Passage(23.0, 25.0, 10.0, (10.0, 0.0, 0.0))


def test_pb2_a_prefill_beside_a_decode():
    two = Two()
    two.run(0, CHUNK, 1.0)
    two.run(1, CHUNK, 1.0)
    assert two.run(0, DECODE, 2.0) == Passage(2.0, 6.0, 0.0, (0.0, 1.0, 0.0))  # a prefill goes before
    assert two.run(2, CHUNK, 5.0) == Passage(4.0, 14.0, 0.0, (0.0, 3.0, 0.0))
    # Its token has been there since 3, and the first stage has the prefill till 9.
    assert two.run(1, DECODE, 2.0) == Passage(9.0, 16.0, 0.0, (0.0, 0.0, 0.0))
    # The first stage is free from 11 and waits for the prefill's token until 14; the second has no wait.
    assert two.run(2, DECODE, 2.0) == Passage(14.0, 18.0, 0.0, (0.0, 3.0, 0.0))


def test_pb3_decodes_of_unequal_context():
    two = Two()
    two.run(0, CHUNK, 1.0)
    two.run(1, CHUNK, 1.0)
    two.run(0, DECODE, 1.0)
    assert two.run(1, DECODE, 4.0) == Passage(3.0, 11.0, 0.0, (0.0, 0.0, 3.0))
    assert two.run(0, DECODE, 1.0) == Passage(7.0, 12.0, 0.0, (0.0, 0.0, 0.0))
    assert two.run(1, DECODE, 4.0) == Passage(11.0, 19.0, 0.0, (0.0, 0.0, 3.0 + 3.0))  # each stage waits 3


def test_equal_plans_leave_none_and_want_of_work_is_no_bubble():
    two = Two()
    for number in range(8):
        passage = two.run(number % 2, CHUNK if number < 2 else DECODE, 1.0)
        assert passage == Passage(number, number + 2.0, 0.0, (0.0, 0.0, 0.0))
    assert two.run(0, DECODE, 1.0, comes=20.0) == Passage(20.0, 22.0, 12.0, (0.0, 0.0, 0.0))
    # Late as well, and longer: the second stage would have waited 2 had it come at once.
    assert two.run(1, DECODE, 3.0, comes=30.0) == Passage(30.0, 36.0, 9.0, (0.0, 0.0, 2.0))


def test_a_wait_that_the_first_stage_hands_on_stays_of_its_kind():
    three = Stages(3)
    seconds = {0: 1.0, 1: 9.0, 2: 1.0}
    for slot, work in ((0, CHUNK), (1, CHUNK), (2, DECODE)):
        three._brought.setdefault(slot, 0.0)
        three.run(plan(slot + 1, slot, work), [work], 3 * seconds[slot], 0.0, 0.0)
    # Ends: 3, 28, 29. The first stage has done the decode at 11, and begins the next at once.
    fourth = three.run(plan(4, 0, DECODE), [DECODE], 3.0, 0.0, 0.0)
    assert (fourth.start, fourth.end, fourth.bubbles) == (11.0, 30.0, (0.0, 0.0, 0.0))
    # It waits from 12 to 28 for the prefill; the second, which ran the fourth till 21, for 8 of these 16.
    fifth = three.run(plan(5, 1, DECODE), [DECODE], 3.0, 0.0, 0.0)
    assert (fifth.start, fifth.end, fifth.bubbles) == (28.0, 31.0, (0.0, 16.0 + 8.0, 0.0))


def test_the_way_between_stages_counts_by_rows():
    two = Two(hop=lambda rows: 0.5 * (rows == 64))
    assert two.run(0, CHUNK, 1.0).end == 2.5
    assert two.run(1, CHUNK, 1.0) == Passage(1.0, 3.5, 0.0, (0.0, 0.0, 0.0))
    assert two.run(0, DECODE, 1.0) == Passage(2.5, 4.5, 0.0, (0.5, 0.0, 0.0))  # a token half a second late


def test_a_request_has_the_bubbles_ahead_of_its_plans():
    bubbles = Bubbles(2, 1)
    bubbles._holders["0"].update({0: "a", 1: "b"})
    bubbles._waits.update(a=0.0, b=0.0)
    bubbles.ran("0", plan(1, 0, CHUNK), 2.0, Passage(0.0, 2.0, 0.0, (1.0, 2.0, 0.0)))
    bubbles.ran("0", plan(2, 1, DECODE), 2.0, Passage(0.0, 2.0, 0.0, (0.0, 0.0, 4.0)))
    bubbles.ended("a")
    bubbles.ran("0", plan(3, 0, DECODE), 0.0, Passage(0.0, 2.0, 0.0, (0.0, 1.0, 0.0)))  # sent before that
    bubbles.ended("b")
    told = bubbles.summary(10.0)
    assert (told["pb1_s"], told["pb2_s"], told["pb3_s"]) == (1.0, 3.0, 4.0)
    assert told["stage_s"] == 20.0 and told["idle_share"] == 0.8 and told["bubble_share"] == 0.4
    assert (bubbles.requests.least, bubbles.requests.most) == (3.0, 4.0)


def over(sim, stages: int, model, **changes):
    made = sim.asked(model=model, known=model, ratios=(), **changes)
    return replace(made, facts=with_(made.facts, pp=stages))


def test_cores_keep_equal_stages_busy(sim, cores):
    """Steps of 40 ms, whatever they carry: four stages do nearly four times as much as one."""
    model = sim.step_time(rows=Curve((1, 1000), (0.04, 0.04)), ways=sim.Ways(), ratios=())
    ended = {}
    for stages in (1, 4):
        result = sim.simulate(
            over(sim, stages, model, scheduler={"max_num_seqs": 8 * stages}),
            sim.some(150),
            sim.Closed(8 * stages, 0.0),
        )
        ended[stages] = result.ended
        assert result.summary()["requests"]["finished"] == 150
    pipeline = result.summary()["pipeline"]
    assert pipeline["stages"] == 4 and pipeline["request_s"]["median"] < 1e-6
    assert pipeline["bubble_share"] < 0.01 and pipeline["idle_share"] < 0.2  # begin and end of the run
    assert result.bubbles.busy == pytest.approx(0.04 * result.counters["steps"])
    assert ended[1] > 3.3 * ended[4]
    assert len(cores) == 2


def test_unequal_steps_make_bubbles_and_chunks_make_them_small(sim):
    model = sim.step_time(rows=Curve((1, 1001), (0.02, 1.02)), ways=sim.Ways(), ratios=())
    shares = {}
    for policy, budget in (("orca", None), ("fixed-budget", 64)):
        scheduler = {"policy": policy, "max_num_batched_tokens": budget}
        asked = over(sim, 4, model, scheduler=scheduler)
        shares[policy] = sim.simulate(asked, sim.some(150), sim.Closed(32, 0.0)).summary()["pipeline"]
    assert shares["orca"]["bubble_share"] > 2 * shares["fixed-budget"]["bubble_share"] > 0
    assert shares["orca"]["request_s"]["median"] > 2 * shares["fixed-budget"]["request_s"]["median"]
    assert all(shares["orca"][kind] > 0 for kind in ("pb1_s", "pb2_s"))


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_no_stream_waits_longer_than_the_target_while_prompts_come_and_go(sim, stages):
    """Decodes are a fifth of a full step, so plans of both sizes follow each other through the stages."""
    model = sim.step_time(rows=Curve((1, 1001), (0.02, 1.02)), ways=sim.Ways(), ratios=())
    scheduler = {"max_num_batched_tokens": None, "slo_tbt": 0.1, "max_num_seqs": 16 * stages}
    scheduler["min_prefill_share"] = 0.0
    shape = Shape(Between(4, 1000), Between(20, 100))
    asked = over(sim, stages, model, scheduler=scheduler)
    tally = sim.simulate(asked, sim.some(200, rate=2.0, shape=shape)).tally
    assert tally.tbt.quantile(0.9) > 0.08  # prompts are as large as they may be
    assert tally.tbt.quantile(0.995) <= 0.1 * GROWTH**0.5
