"""What users of serving systems ran into, as far as the scheduler's core is concerned."""

from itertools import pairwise

import pytest

from pillion.scheduler.messages import RowResult, SendPlan, StepDone
from pillion.scheduler.policies import POLICIES

SMALL = {"num_blocks": 25, "block_size": 4, "max_model_len": 96, "tile": 1}


def total_blocks(snapshot) -> int:
    return snapshot.free_blocks + snapshot.cached_blocks + snapshot.referenced_blocks


def test_the_worked_step_80_300_132(make, toy):
    drive = make({"max_num_batched_tokens": 512, "enable_prefix_caching": False}, {"tile": 128})
    drive.submit(
        *(toy.request(f"d{i}", toy.prompt(2, i), max_tokens=400, ignore_eos=True) for i in range(80))
    )
    while drive.core.snapshot().decoding < 80:
        drive.advance()
    drive.submit(
        toy.request("p", toy.prompt(300, 1001), arrival=1.0),
        toy.request("q", toy.prompt(900, 1002), arrival=2.0),
    )
    count = len(drive.plans)
    while len(drive.plans) == count or len(drive.plans[-1].counts) == drive.plans[-1].decodes:
        drive.advance()
    plan = drive.plans[-1]
    assert (plan.decodes, plan.counts[80:], plan.tokens) == (80, (300, 132), 512)
    drive.run()
    drive.check_outputs()


@pytest.mark.parametrize("after", [0, 1, 2, 3, 5])
def test_s1_s5_a_cancel_frees_slot_and_blocks_at_once_in_every_state(make, toy, after):
    drive = make({"max_num_batched_tokens": 32}, {"tile": 16})
    drive.submit(toy.request("x", toy.prompt(80), max_tokens=50))
    for _ in range(after):
        drive.finish_step()
    states = drive.core.snapshot()
    drive.cancel("x")
    snapshot = drive.core.snapshot()
    assert snapshot.referenced_blocks == 0 and snapshot.running == snapshot.waiting == 0
    assert states.prefilling + states.decoding == 1
    assert drive.streams["x", 0].finish == "cancelled" and drive.finished == ["x"]
    drive.cancel("x")  # a second one is ignored
    assert drive.finished == ["x"]
    # The next request runs in the same slot although results of the first are still to come.
    drive.submit(toy.request("y", toy.prompt(80, 9)))
    drive.run()
    drive.check_outputs("y")


def test_s4_results_of_the_cancelled_are_ignored_and_counted(make, toy):
    drive = make()
    drive.submit(toy.request("x", toy.prompt(20), max_tokens=50), toy.request("y", toy.prompt(20, 1)))
    drive.finish_step()
    drive.cancel("x")
    assert len(drive.in_flight) > 0 and drive.core.snapshot().late_results == 0
    drive.run()
    assert drive.core.snapshot().late_results > 0
    drive.check_outputs("y")
    # A result that names a step or a sequence that never was
    late = drive.core.snapshot().late_results
    assert drive.core.handle(StepDone(777, (RowResult(0, 1, (5,)),), 0.1), drive.now) == []
    assert drive.core.snapshot().late_results == late + 1


@pytest.mark.parametrize("seconds", [0.001, 0.1])
@pytest.mark.parametrize("policy", sorted(POLICIES.keys() - {"request-level"}))  # where nobody joins a batch
def test_s7_preempted_with_results_in_flight(make, toy, policy, seconds):
    drive = make({"max_num_batched_tokens": 64, "policy": policy}, SMALL, lambda plan: seconds)
    sampling = {"max_tokens": 60, "ignore_eos": True}
    drive.submit(toy.request("low", toy.prompt(30, 3), priority=1, seed=5, **sampling))
    for _ in range(8):
        drive.advance()
    drive.submit(toy.request("high", toy.prompt(70, 2), priority=0, arrival=1.0))
    while not drive.core.snapshot().preemptions:
        drive.advance()
    assert len(drive.in_flight) == 2  # it was preempted before the first of them returned
    before = len(drive.streams["low", 0].tokens)
    drive.run()
    assert len(drive.streams["low", 0].tokens) > before > 0
    drive.check_outputs()
    retaken = [plan.take for plan in drive.plans if any(take.request.id == "low" for take in plan.take)]
    assert len(retaken) == 2 and retaken[1][0].max_tokens == 60  # not counted anew
    assert len(retaken[1][0].tokens) > 30


def test_s8_tiny_pool_equals_large_and_preemptions_are_bounded(make, toy):
    tiny, large = make({}, SMALL), make({}, SMALL | {"num_blocks": 1000})
    for drive in (tiny, large):
        drive.submit(
            *(
                toy.request(str(i), toy.prompt(8, i), max_tokens=60, seed=i, arrival=float(i))
                for i in range(8)
            )
        )
        drive.run()
        drive.check_outputs()
    assert large.core.snapshot().preemptions == 0 < tiny.core.snapshot().preemptions
    assert tiny.streams.keys() == large.streams.keys()
    assert all(tiny.streams[key].tokens == large.streams[key].tokens for key in tiny.streams)
    takes = [take.request.id for plan in tiny.plans for take in plan.take]
    assert max(takes.count(id) for id in tiny.requests) <= 1 + 3
    assert takes.count("0") == 1  # the oldest is never a victim


def test_s9_a_victim_leaves_the_step_that_is_being_made(make, toy):
    drive = make({"max_num_batched_tokens": 64}, SMALL)
    drive.submit(toy.request("low", toy.prompt(30, 3), priority=1, max_tokens=60, seed=5))
    for _ in range(4):
        drive.finish_step()
    low = drive.plans[0].take[0].slot
    drive.submit(toy.request("high", toy.prompt(80, 2), priority=0, arrival=1.0))
    while not drive.core.snapshot().preemptions:
        drive.finish_step()
    plan = drive.plans[-1]
    (take,) = plan.take
    assert take.request.id == "high" and plan.decodes == 0
    assert low in plan.release
    assert plan.tokens == 64 == plan.counts[0]  # the victim's token went to the prompt
    drive.run()
    drive.check_outputs()


def test_s10_no_block_needed_and_none_free(make, toy):
    drive = make({"watermark": 0.0}, {"num_blocks": 5, "block_size": 16, "max_model_len": 64, "tile": 1})
    drive.submit(
        *(toy.request(str(i), toy.prompt(20, i), max_tokens=12, seed=i, arrival=float(i)) for i in range(2))
    )
    lowest = 5
    while drive.advance():
        snapshot = drive.core.snapshot()
        lowest = min(lowest, snapshot.free_blocks + snapshot.cached_blocks)
    assert lowest == 0 and drive.core.snapshot().preemptions == 0
    drive.check_outputs()


@pytest.mark.parametrize("guard", ["stretch", "turns"])
def test_s11_decodes_outnumber_the_budget(make, toy, guard):
    drive = make(
        {"max_num_batched_tokens": 8, "prefill_guard": guard, "enable_prefix_caching": False},
        {"tile": 4},
    )
    drive.submit(
        *(toy.request(f"d{i}", toy.prompt(2, i), max_tokens=150, ignore_eos=True) for i in range(16)),
    )
    drive.until(0.004)
    while drive.core.snapshot().decoding < 16:
        drive.advance()
    drive.submit(toy.request("p", toy.prompt(40, 99), arrival=1.0))
    first = len(drive.plans)
    while ("p", 0) not in drive.streams:
        drive.advance()
    chunks = [plan for plan in drive.plans[first:] if len(plan.counts) > plan.decodes]
    assert len(chunks) > 3
    assert all(count > 0 for plan in chunks for count in plan.counts)
    crowded = [plan for plan in chunks if plan.decodes >= 7]
    assert crowded
    if guard == "turns":
        assert max(plan.tokens for plan in chunks) <= 8
        turns = {slot for plan in chunks for slot in plan.slots[: plan.decodes]}
        assert len(turns) > 8
    else:
        assert max(plan.tokens for plan in chunks) > 16 and all(plan.tokens % 4 == 0 for plan in chunks[:-1])
    drive.run()
    drive.check_outputs()


def test_s12_what_never_fits_the_pool_is_refused_at_once(make, toy):
    drive = make({}, SMALL | {"num_blocks": 11, "max_model_len": 96})
    drive.submit(toy.request("other", toy.prompt(20)))
    drive.submit(toy.request("big", toy.prompt(60), max_tokens=1))
    refusal = drive.refusals["big"]
    assert refusal.status == 400 and refusal.code == "context_length_exceeded"
    assert "41" in refusal.message and "KV cache" in refusal.message
    # 40 positions: the last token is never computed
    drive.submit(toy.request("fits", toy.prompt(30, 2), max_tokens=11, seed=3))
    drive.submit(toy.request("not", toy.prompt(30, 2), max_tokens=12))
    assert "not" in drive.refusals and "fits" not in drive.refusals
    # All of a prompt is computed, whether an output is wanted or not.
    drive.submit(toy.request("whole", toy.prompt(40, 3), max_tokens=0, seed=4))
    drive.submit(toy.request("more", toy.prompt(41, 3), max_tokens=0))
    assert "more" in drive.refusals and "at most 40 tokens" in drive.refusals["more"].message
    drive.run()
    drive.check_outputs("other", "fits", "whole")


def test_s13_prompts_at_the_limit(make, toy):
    drive = make({}, {"max_model_len": 64})
    for length in (63, 64, 65):
        drive.submit(toy.request(str(length), toy.prompt(length, length), max_tokens=None))
    drive.run()
    drive.check_outputs("63")
    assert len(drive.output("63")) == 1
    assert sorted(drive.refusals) == ["64", "65"]
    for refusal in drive.refusals.values():
        assert refusal.param == "prompt" and "64" in refusal.message
    drive.submit(toy.request("empty", ()))
    assert drive.refusals["empty"].param == "prompt"


@pytest.mark.parametrize("scored", [None, 2])
def test_s13_a_prompt_fills_the_context_where_no_output_is_wanted(make, toy, scored):
    drive = make({"max_num_batched_tokens": 24}, {"max_model_len": 64})
    for length in (1, 64, 65):
        asked = toy.request(str(length), toy.prompt(length, length), max_tokens=0, prompt_logprobs=scored)
        drive.submit(asked)
    drive.run()
    # A step of its own computes its last row, and nothing behind it.
    drive.check_outputs("1", "64")
    assert [len(drive.output(name)) for name in ("1", "64")] == [1, 1]
    assert sum(plan.tokens for plan in drive.plans) == 65 and not any(plan.decodes for plan in drive.plans)
    assert drive.told == (0 if scored is None else 2)
    (refusal,) = drive.refusals.values()
    assert (refusal.param, refusal.code) == ("prompt", "context_length_exceeded")
    assert "at most 64 tokens" in refusal.message and "the prompt has 65" in refusal.message


def test_s14_the_head_waits_for_whoever_holds_blocks_and_nobody_overtakes_it(make, toy):
    drive = make({}, SMALL)
    drive.submit(toy.request("holder", toy.prompt(40, 1), max_tokens=20, seed=4))
    drive.finish_step()
    drive.submit(
        toy.request("head", toy.prompt(80, 2), arrival=1.0),
        toy.request("small", toy.prompt(4, 3), arrival=2.0),
    )
    drive.run()
    drive.check_outputs()
    assert drive.core.snapshot().preemptions == 0
    order = [take.request.id for plan in drive.plans for take in plan.take]
    assert order == ["holder", "head", "small"]
    assert drive.times["holder", 0][-1] < drive.times["head", 0][0]


def test_s15_fifty_short_prompts_behind_a_long_one(make, toy):
    drive = make({"max_num_batched_tokens": 128}, {"tile": 16}, lambda plan: 0.01 + 0.0005 * plan.tokens)
    drive.submit(toy.request("long", toy.prompt(2000, 1)))
    drive.submit(*(toy.request(str(i), toy.prompt(20, 10 + i), arrival=1.0 + i) for i in range(50)))
    drive.run()
    drive.check_outputs()
    alone = 2000 / 128 * 0.074
    last = max(drive.times[str(i), 0][0] for i in range(50))
    assert drive.times["long", 0][0] < alone * 1.3
    assert last < alone + 50 * 20 / 64 * 0.074 + 1.0


def test_s17_forced_hash_collisions_never_share(make, toy):
    drive = make(hash_block=lambda content: 7)
    drive.submit(*(toy.request(str(i), toy.prompt(100, i), seed=i) for i in range(4)))
    drive.run()
    drive.submit(*(toy.request(str(i), toy.prompt(100, i - 4), seed=i) for i in range(4, 8)))
    drive.run()
    drive.check_outputs()  # the toy compares every KV cell that is read
    assert (
        drive.core.snapshot().hit_tokens == 16
    )  # the one entry there is room for, by the prompt that has it
    assert drive.streams["4", 0].cached == 16


def test_s17_equal_tokens_under_colliding_parents(make, toy):
    # Blocks 2 have equal tokens; only their parents differ, and these collide.
    drive = make(hash_block=lambda content: sum(content[1]) if content[1][0] == 5 else 3)
    tail = (5,) * 16
    drive.submit(toy.request("a", (1,) * 16 + tail + (9,)))
    drive.run()
    drive.submit(toy.request("b", (2,) * 16 + tail + (9,)))
    drive.run()
    drive.check_outputs()
    assert drive.streams["b", 0].cached == 0


@pytest.mark.parametrize(
    ("shared", "length", "cached"),
    [(15, 40, 0), (16, 40, 16), (17, 40, 16), (32, 40, 32), (40, 40, 32), (32, 32, 16), (33, 33, 32)],
)
def test_s18_hits_at_block_borders(make, toy, shared, length, cached):
    drive = make()
    first = toy.prompt(64, 1)
    drive.submit(toy.request("a", first))
    drive.run()
    rows = drive.executor.rows_run
    drive.submit(toy.request("b", first[:shared] + toy.prompt(length - shared, 2), seed=1))
    drive.run()
    drive.check_outputs()
    assert drive.streams["b", 0].cached == cached
    assert drive.executor.rows_run - rows == length - cached + len(drive.output("b")) - 1


def test_s19_cancelled_in_mid_prefill_then_again(make, toy):
    drive = make({"max_num_batched_tokens": 32})
    prompt = toy.prompt(200, 1)
    drive.submit(toy.request("a", prompt))
    drive.finish_step()
    drive.cancel("a")
    sent = sum(plan.tokens for plan in drive.plans)
    assert 32 <= sent < 200
    drive.submit(toy.request("b", prompt, seed=1))
    drive.run()
    drive.check_outputs("b")
    assert drive.streams["b", 0].cached == sent  # exactly what sent plans compute, no more


def test_s20_flooded_then_again(make, toy):
    drive = make({}, SMALL)
    prompt = toy.prompt(30, 1)
    drive.submit(toy.request("a", prompt))
    drive.run()
    drive.submit(toy.request("again", prompt, seed=1))
    drive.run()
    assert drive.streams["again", 0].cached == 28
    drive.submit(toy.request("flood", toy.prompt(90, 2), max_tokens=6))
    drive.run()
    assert drive.core.snapshot().free_blocks <= 1
    drive.submit(toy.request("b", prompt, seed=2))
    drive.run()
    drive.check_outputs()
    assert drive.streams["b", 0].cached <= 4  # the head is the last to go


def test_tails_go_before_heads(make, toy):
    drive = make({}, SMALL)
    prompt = toy.prompt(40, 1)
    drive.submit(toy.request("a", prompt, max_tokens=1))
    drive.run()
    drive.submit(toy.request("b", toy.prompt(72, 2), max_tokens=1))  # 14 free and 4 cached blocks
    drive.run()
    drive.submit(toy.request("c", prompt, seed=1))
    drive.run()
    assert drive.streams["c", 0].cached == 24
    drive.check_outputs()


@pytest.mark.parametrize("hash_block", [hash, lambda content: hash(content[1])])
def test_s21_two_salts_never_share(make, toy, hash_block):
    drive = make(hash_block=hash_block)  # the second lets the salts' keys collide
    for id, salt in (("a", ""), ("b", "x"), ("c", "y"), ("d", "x")):
        drive.submit(toy.request(id, toy.prompt(64, 1), cache_salt=salt))
        drive.run()
    drive.check_outputs()
    assert [drive.streams[id, 0].cached for id in "abcd"] == [0, 0, 0, 48 if hash_block is hash else 0]


@pytest.mark.parametrize("order", [("low", "high"), ("high", "low")])
def test_s44_two_that_together_exceed_the_pool(make, toy, order):
    drive = make({"max_num_batched_tokens": 16}, SMALL)
    sizes = {"low": (60, 1), "high": (61, 0)}
    for id in order:
        length, priority = sizes[id]
        drive.submit(toy.request(id, toy.prompt(length, length), priority=priority, seed=2))
        drive.finish_step()
    drive.run()
    drive.check_outputs()
    assert drive.core.snapshot().preemptions == (order[0] == "low")


@pytest.mark.parametrize("budget", [1, 3, 15])
def test_s45_budget_below_one_tile(make, toy, budget):
    drive = make({"max_num_batched_tokens": budget, "enable_prefix_caching": False}, {"tile": 16})
    drive.submit(toy.request("a", toy.prompt(40, 1)))
    drive.run()
    drive.check_outputs()
    assert drive.plans[0].tokens == budget


def test_s45_free_blocks_below_one_tile(make, toy):
    drive = make({}, {"num_blocks": 9, "block_size": 4, "tile": 64, "max_model_len": 64})
    drive.submit(toy.request("a", toy.prompt(28, 1), max_tokens=4))
    drive.run()
    drive.check_outputs()
    assert drive.plans[0].tokens == 28


def test_s46_a_common_prefix_is_computed_once(make, toy):
    drive = make({"max_num_batched_tokens": 512})
    common = toy.prompt(600, 1)
    requests = [
        toy.request(str(i), common + toy.prompt(30, 10 + i), seed=i, arrival=float(i)) for i in range(6)
    ]
    drive.submit(toy.request("first", toy.prompt(3, 77)))  # so that all six arrive within one step
    drive.submit(*requests)
    drive.run()
    drive.check_outputs()
    assert [drive.streams[str(i), 0].cached for i in range(6)] == [0] + [592] * 5
    prompts = sum(sum(plan.counts[plan.decodes :]) for plan in drive.plans if len(plan.counts) > plan.decodes)
    assert prompts == 3 + 630 + 5 * 38


def test_s46_a_running_prompt_adopts_what_another_filled(make, toy):
    # Both run before either has computed the common part: the second goes on behind the first's blocks.
    drive = make({"max_num_batched_tokens": 48}, {"tile": 16})
    common = toy.prompt(300, 1)
    drive.submit(toy.request("a", toy.prompt(40, 5), max_tokens=1))
    drive.submit(toy.request("b", common, arrival=2.0), toy.request("c", common, arrival=1.0, priority=0))
    drive.run()
    drive.check_outputs()
    computed = sum(
        sum(plan.counts[plan.decodes :]) for plan in drive.plans if len(plan.counts) > plan.decodes
    )
    assert computed == 40 + 300 + 12


def test_s47_a_chat_does_not_wait_two_grown_steps(make, toy):
    def seconds(plan):
        return 0.005 + 0.0005 * plan.tokens

    drive = make({"slo_tbt": 0.1}, {"tile": 64, "num_blocks": 4097, "max_model_len": 40000}, seconds)
    drive.submit(toy.request("long", toy.prompt(20000, 1)))
    drive.until(3.0)
    grown = max(plan.tokens for plan in drive.plans)
    assert seconds(drive.plans[-1]) > 0.15  # with nothing to protect, steps grow over the target
    assert all(seconds(plan) < 0.22 for plan in drive.plans[5:])
    drive.submit(toy.request("chat", toy.prompt(10, 2), arrival=1.0, max_tokens=20, priority=-1))
    drive.run()
    drive.check_outputs()
    times = drive.times["chat", 0]
    assert times[0] - drive.arrived["chat"] < 2 * seconds_of(grown)
    gaps = [b - a for a, b in pairwise(times)]
    assert max(gaps[1:]) <= 0.1 * 1.1  # protected from then on


def seconds_of(tokens: int) -> float:
    return 0.005 + 0.0005 * tokens


def test_s49_choices_of_one_prompt_compute_it_once(make, toy):
    drive = make()
    drive.submit(toy.request("x", toy.prompt(50, 1), toy.prompt(40, 2), n=4, seed=11))
    drive.run()
    drive.check_outputs()
    assert len({drive.output("x", choice) for choice in range(4)}) == 4
    assert [drive.streams["x", choice].cached for choice in range(8)] == [0, 48, 48, 48, 0, 32, 32, 32]
    assert drive.finished == ["x"]


def test_s28_one_choice_is_cancelled_the_others_go_on(make, toy):
    drive = make()
    drive.submit(toy.request("x", toy.prompt(50, 1), n=3, seed=11, max_tokens=30))
    drive.finish_step()
    drive.cancel("x", 1)
    assert drive.finished == []
    drive.run()
    assert [drive.streams["x", c].finish for c in range(3)].count("cancelled") == 1
    assert drive.streams["x", 1].finish == "cancelled"
    assert drive.output("x", 0) == toy.expected(drive.requests["x"], 0)[0]
    assert drive.finished == ["x"]


def test_s48_resumed_from_the_journal(make, toy):
    drive = make()
    request = toy.request("x", toy.prompt(50, 1), n=3, seed=11, max_tokens=30)
    wanted = [toy.expected(request, choice)[0] for choice in range(3)]
    drive.resume(request, {0: wanted[0][:5], 1: wanted[1]}, ended=(1,))
    drive.run()
    assert drive.output("x", 0) == wanted[0] and drive.output("x", 2) == wanted[2]
    takes = [take for plan in drive.plans for take in plan.take]
    assert sorted(take.choice for take in takes) == [0, 2]
    assert all(take.max_tokens == 30 and take.prompt_length == 50 for take in takes)
    assert len(takes[0].tokens) == 55
    assert drive.finished == ["x"]
    # All tokens are there but the end was not: it ends by length. All choices have ended: only that is said.
    full = toy.request("y", toy.prompt(5), max_tokens=2)
    drive.resume(full, {0: toy.expected(full, 0)[0]})
    assert drive.streams["y", 0].finish == "length"
    drive.resume(toy.request("z", toy.prompt(5)), {}, ended=(0,))
    assert drive.finished == ["x", "y", "z"] and ("z", 0) not in drive.streams


def test_s50_end_tokens_end_a_sequence_and_later_rows_are_skipped(make, toy):
    drive = make()
    drive.submit(*(toy.request(str(i), toy.prompt(10, i), seed=i, max_tokens=200) for i in range(20)))
    drive.run()
    drive.check_outputs()
    stops = [stream for stream in drive.streams.values() if stream.finish == "stop"]
    assert len(stops) > 5 and all(stream.tokens[-1] == toy.END for stream in stops)
    assert drive.core.snapshot().late_results == 0


def test_s22_blocks_add_up_after_every_step(make, toy):
    drive = make({}, SMALL)
    drive.submit(*(toy.request(str(i), toy.prompt(20, i % 3), max_tokens=30, seed=i, n=2) for i in range(10)))
    steps = 0
    while drive.advance():
        steps += 1
        assert total_blocks(drive.core.snapshot()) == 24
    assert steps > 50 and drive.core.snapshot().preemptions > 0
    drive.check_outputs()


def test_a_recorded_run_replays_to_the_same_plans(make, toy):
    options, executor = {"max_num_batched_tokens": 32}, SMALL
    drive = make(options, executor, lambda plan: 0.01 + plan.tokens * 0.001)
    for i in range(12):
        drive.submit(toy.request(str(i), toy.prompt(20, i % 4), max_tokens=30, seed=i, arrival=drive.now))
        drive.until(drive.now + 0.05)
    drive.cancel("3")
    drive.finish_step(fail=True)
    drive.disconnect()
    drive.connect()
    drive.run()
    again = make(options, executor, connect=False).core
    plans = [
        command.plan
        for event, now in drive.events
        for command in again.handle(event, now)
        if isinstance(command, SendPlan)
    ]
    assert plans == drive.plans and len(plans) > 50
