"""What each batching policy puts into a step, as its paper defines it."""

import pytest

from pillion.config import Scheduler, tree
from pillion.scheduler.messages import Plan
from pillion.scheduler.policies import POLICIES, UnknownPolicy, make

WHOLE = ("request-level", "orca", "prefill-first", "hybrid-only")
MIXED = ("orca", "hybrid-only", "sarathi", "fixed-budget", "stall-free")
SMALL = {"num_blocks": 25, "block_size": 4, "max_model_len": 96, "tile": 1}
ONE = {"multi_step_seconds": 0.0}  # step a plan


def build(make, policy, executor=None, step_time=None, **options):
    options = ONE | {"policy": policy, "enable_prefix_caching": False} | options
    return make(options, {"tile": 4} | (executor or {}), step_time)


def chunks(plan: Plan) -> tuple[int, ...]:
    return plan.counts[plan.decodes :]


def run_decodes(drive, toy, count, output=100):
    drive.submit(
        *(toy.request(f"d{i}", toy.prompt(3, i), max_tokens=output, ignore_eos=True) for i in range(count))
    )
    while drive.core.snapshot().decoding < count:
        drive.advance()


def with_prompts(drive, until):
    """The plans from now on that carry prompts, until the request has its first token."""
    first = len(drive.plans)
    while (until, 0) not in drive.streams:
        drive.advance()
    return [plan for plan in drive.plans[first:] if chunks(plan)]


def test_an_unknown_policy_is_refused_with_those_there_are():
    with pytest.raises(UnknownPolicy, match=", ".join(sorted(POLICIES))):
        make("first-come")
    assert make(Scheduler().policy).__class__ is POLICIES["stall-free"]
    assert tuple(POLICIES) == tree.POLICIES  # what --policy takes


@pytest.mark.parametrize("policy", WHOLE)
def test_a_prompt_goes_whole_and_only_the_executors_limit_splits_it(make, toy, policy):
    drive = build(make, policy, {"max_step_tokens": 256}, max_num_batched_tokens=64)
    drive.submit(toy.request("a", toy.prompt(200, 1)), toy.request("b", toy.prompt(600, 2), arrival=1.0))
    drive.run()
    drive.check_outputs()
    prompts = [chunks(plan) for plan in drive.plans if chunks(plan)]
    assert prompts[0] == (200,) and len(prompts) == 4
    assert all(len(counts) == 1 for counts in prompts) and sum(map(sum, prompts)) == 800
    assert all(plan.tokens == 256 for plan in drive.plans if chunks(plan) in prompts[1:3])


@pytest.mark.parametrize("policy", WHOLE)
def test_several_whole_prompts_share_a_step_within_the_limit(make, toy, policy):
    drive = build(make, policy, max_num_batched_tokens=64, max_num_seqs=5)
    drive.submit(*(toy.request(f"h{i}", toy.prompt(3, i), max_tokens=3) for i in range(5)))  # all slots
    drive.submit(*(toy.request(str(i), toy.prompt(20, 10 + i), arrival=1.0) for i in range(5)))
    drive.run()
    drive.check_outputs()
    assert max(chunks(plan).count(20) for plan in drive.plans) == 3
    assert all(plan.tokens <= 64 for plan in drive.plans)


def test_request_level_runs_a_batch_to_its_end(make, toy):
    drive = build(make, "request-level", max_num_seqs=8)
    drive.submit(toy.request("before", toy.prompt(3, 9), max_tokens=1))
    lengths = {"short": 5, "long": 14}
    for id, length in lengths.items():
        drive.submit(toy.request(id, toy.prompt(9, length), max_tokens=length, ignore_eos=True))
    while drive.core.snapshot().decoding < 2:
        drive.advance()
    drive.submit(toy.request("late", toy.prompt(9, 5), arrival=1.0))
    drive.run()
    drive.check_outputs()
    short, long, late = (drive.times[id, 0] for id in ("short", "long", "late"))
    assert short[0] == long[0]
    assert short[-1] < long[-1] < late[0]  # although slots were free all the time
    assert all(not plan.decodes or not chunks(plan) for plan in drive.plans)


def test_request_level_computes_all_prompts_before_a_decode(make, toy):
    drive = build(make, "request-level", max_num_batched_tokens=16)
    drive.submit(toy.request("first", toy.prompt(3, 9), max_tokens=3, ignore_eos=True))
    drive.submit(*(toy.request(str(i), toy.prompt(10, i), arrival=1.0) for i in range(6)))
    drive.run()
    drive.check_outputs()
    kinds = [bool(chunks(plan)) for plan in drive.plans]
    assert kinds[:3] == [True, False, False] and kinds[3:9] == [True] * 6 and not any(kinds[9:])
    takes = [len(plan.take) for plan in drive.plans if plan.take]
    assert takes == [1, 6]  # the batch is closed when it begins


@pytest.mark.parametrize("policy", ["orca", "request-level"])
def test_what_is_let_in_has_all_its_blocks_reserved(make, toy, policy):
    drive = build(make, policy, SMALL)
    drive.submit(*(toy.request(str(i), toy.prompt(8, i), max_tokens=41, ignore_eos=True) for i in range(6)))
    most = 0
    while drive.advance():
        most = max(most, drive.core.snapshot().running)
    drive.check_outputs()
    assert most == 2  # of 12 blocks each, 24 there are
    assert drive.core.snapshot().preemptions == 0


def test_hybrid_only_takes_blocks_as_they_are_needed(make, toy):
    drive = build(make, "hybrid-only", SMALL)
    drive.submit(*(toy.request(str(i), toy.prompt(8, i), max_tokens=41, ignore_eos=True) for i in range(6)))
    drive.advance()
    assert drive.core.snapshot().running == 6
    drive.run()
    drive.check_outputs()
    assert drive.core.snapshot().preemptions > 0


@pytest.mark.parametrize("policy", ["orca", "hybrid-only"])
def test_whole_prompts_ride_with_decodes(make, toy, policy):
    drive = build(make, policy)
    run_decodes(drive, toy, 10)
    drive.submit(toy.request("p", toy.prompt(500, 99), arrival=1.0))
    (plan,) = with_prompts(drive, "p")
    assert (plan.decodes, chunks(plan)) == (10, (500,))


def test_prefill_first_lets_decodes_stall(make, toy):
    drive = build(make, "prefill-first", max_num_batched_tokens=100)
    run_decodes(drive, toy, 10)
    drive.submit(*(toy.request(f"p{i}", toy.prompt(60, 90 + i), arrival=1.0 + i) for i in range(3)))
    first = len(drive.plans)
    with_prompts(drive, "p2")
    in_a_row = [plan for plan in drive.plans[first:] if chunks(plan)]
    assert [chunks(plan) for plan in in_a_row] == [(60,)] * 3 and not any(plan.decodes for plan in in_a_row)
    assert [plan.step for plan in in_a_row] == list(range(in_a_row[0].step, in_a_row[0].step + 3))


def test_sarathi_has_one_chunk_and_the_riders_fill_it_up(make, toy):
    drive = build(make, "sarathi", max_num_batched_tokens=32, max_num_seqs=6)
    run_decodes(drive, toy, 5)
    drive.submit(*(toy.request(f"p{i}", toy.prompt(60, 90 + i), arrival=1.0 + i) for i in range(2)))
    plans = with_prompts(drive, "p0")
    assert [(plan.decodes, chunks(plan)) for plan in plans] == [(5, (27,)), (5, (27,)), (5, (6,))]
    drive.run()
    drive.check_outputs()
    assert max(len(chunks(plan)) for plan in drive.plans) == 1
    assert max(plan.decodes for plan in drive.plans if chunks(plan)) == 5  # of six slots the prompt has one


def test_stall_free_and_fixed_budget_fill_the_step_with_the_next_prompt(make, toy):
    for policy in ("stall-free", "fixed-budget"):
        drive = build(make, policy, max_num_batched_tokens=32, max_num_seqs=7)
        run_decodes(drive, toy, 5)
        drive.submit(*(toy.request(f"p{i}", toy.prompt(60, 90 + i), arrival=1.0 + i) for i in range(2)))
        plans = with_prompts(drive, "p0")
        assert [chunks(plan) for plan in plans[:3]] == [(27,), (27,), (6, 21)]


def test_only_stall_free_keeps_a_time(make, toy):
    """The others compute what they are told to, and no cost model changes that."""
    for policy, most in (("stall-free", 64), ("fixed-budget", 512), ("sarathi", 512), ("chunked-only", 512)):
        drive = build(
            make,
            policy,
            {"tile": 16},
            lambda plan: 0.001 * plan.tokens,
            max_num_batched_tokens=512,
            slo_tbt=0.07,
        )
        run_decodes(drive, toy, 4, output=400)
        drive.submit(toy.request("p", toy.prompt(4000, 99), arrival=1.0, max_tokens=40))
        plans = with_prompts(drive, "p")
        assert max(plan.tokens for plan in plans[3:]) == most, policy


def test_chunked_only_gives_chunks_and_decodes_turns(make, toy):
    drive = build(make, "chunked-only", max_num_batched_tokens=32)
    run_decodes(drive, toy, 10)
    drive.submit(toy.request("p", toy.prompt(300, 99), arrival=1.0))
    first = len(drive.plans)
    with_prompts(drive, "p")
    shapes = [(plan.decodes, sum(chunks(plan))) for plan in drive.plans[first:]]
    start = shapes.index((0, 32))
    assert shapes[start : start + 18] == [(0, 32), (10, 0)] * 9
    drive.run()
    drive.check_outputs()


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_s8_tiny_pool_equals_large(make, toy, policy):
    outputs = []
    for executor in (SMALL, SMALL | {"num_blocks": 1000}):
        drive = make({"policy": policy}, executor)
        drive.submit(
            *(
                toy.request(str(i), toy.prompt(8, i), max_tokens=60, seed=i, arrival=float(i))
                for i in range(8)
            )
        )
        drive.run()
        drive.check_outputs()
        outputs.append({key: stream.tokens for key, stream in drive.streams.items()})
        preemptions = drive.core.snapshot().preemptions
        takes = [take.request.id for plan in drive.plans for take in plan.take]
        assert max(takes.count(id) for id in drive.requests) <= 1 + 3
        assert (preemptions > 0) == (executor is SMALL and not POLICIES[policy].reserves)
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("guard", ["stretch", "turns"])
@pytest.mark.parametrize("policy", MIXED)
def test_s11_prompts_progress_where_decodes_fill_the_step(make, toy, policy, guard):
    executor = {"max_step_tokens": 16} if policy in WHOLE else {}
    drive = build(make, policy, executor, max_num_batched_tokens=8, prefill_guard=guard)
    run_decodes(drive, toy, 16, output=150)
    drive.submit(toy.request("p", toy.prompt(40, 99), arrival=1.0))
    plans = with_prompts(drive, "p")
    assert all(count > 0 for plan in plans for count in chunks(plan))
    assert any(plan.decodes >= 7 for plan in plans)
    assert drive.core.snapshot().decoding > 12  # it did not wait for their end
    drive.run()
    drive.check_outputs()
