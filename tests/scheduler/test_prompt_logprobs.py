"""A prompt that is told of is computed whole, in one go, and what is told goes out with the first token.

The driver compares it whole wherever it comes.
"""

import pytest

from pillion.scheduler.budget import Budget
from pillion.scheduler.policies import POLICIES
from pillion.scheduler.work import work_of
from pillion.steptime import Curve, StepTime, Work

SMALL = {"num_blocks": 7}


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_it_finds_nothing_and_others_find_what_it_computed(make, toy, policy):
    drive = make({"max_num_batched_tokens": 24, "policy": policy})
    prompt = toy.prompt(60)
    for id, wish in (("first", 0), ("again", 0), ("plain", None)):
        drive.submit(toy.request(id, prompt, prompt_logprobs=wish))
        drive.run()
    drive.check_outputs()
    assert [drive.streams[id, 0].cached for id in ("first", "again", "plain")] == [0, 0, 48]
    assert (drive.told, drive.executor.rows_scored) == (2, 2 * 59)
    assert drive.core.snapshot().queried_tokens == 60, "who may not use the index does not ask it"


def test_a_prompt_of_one_token_is_told_of_with_nothing(make, toy):
    drive = make()
    drive.submit(toy.request("a", toy.prompt(1), toy.prompt(3), n=2, prompt_logprobs=2))
    drive.run()
    assert (drive.told, drive.executor.rows_scored) == (4, 2 * 2)


def test_preempted_while_its_last_chunk_is_in_flight(make, toy):
    """What came before the preemption counts, for its first token comes too."""
    drive = make({"max_num_batched_tokens": 16}, SMALL)
    drive.submit(toy.request("low", toy.prompt(30), priority=1, prompt_logprobs=0, ignore_eos=True))
    while len(drive.plans) < 2:
        drive.advance()
    drive.submit(toy.request("high", toy.prompt(70, 2)))
    drive.now = drive.wake
    while not drive.core.snapshot().preemptions:
        assert drive.advance()
    assert drive.told == 0 and drive.in_flight[0].samples == (1,)
    drive.run()
    assert (drive.told, drive.taken_again, drive.executor.rows_scored) == (1, 0, 29)
    drive.check_outputs()


@pytest.mark.parametrize("happens", ["preempted", "failed", "lost"])
def test_begun_again_it_is_told_of_anew(make, toy, happens):
    drive = make({"max_num_batched_tokens": 16}, SMALL)
    drive.submit(toy.request("low", toy.prompt(60), priority=1, prompt_logprobs=0, ignore_eos=True))
    while len(drive.plans) < 3:
        drive.advance()
    computed = drive.executor.rows_scored
    assert computed > 0
    if happens == "preempted":
        drive.submit(toy.request("high", toy.prompt(70, 2), max_tokens=2))
    elif happens == "failed":
        drive.finish_step(fail=True)
    else:
        drive.disconnect()
        drive.connect()
        computed = 0
    drive.run()
    assert (drive.told, drive.taken_again) == (1, 1)
    assert drive.executor.rows_scored >= computed + 59
    drive.check_outputs()


def test_with_output_in_the_journal_it_is_told_of_no_more(make, toy):
    drive = make()
    one = toy.request("a", toy.prompt(40), prompt_logprobs=0, ignore_eos=True)
    other = toy.request("b", toy.prompt(40), ignore_eos=True)
    drive.submit(other)
    drive.run()
    tokens, _ = toy.expected(one, 0)
    drive.resume(one, {0: tokens[:3]})
    drive.run()
    drive.check_outputs()
    assert drive.executor.rows_scored == 0
    assert drive.core.snapshot().hit_tokens == 32, "it may read what is there"


MODEL = StepTime(base=0.005, rows=Curve((64,), (0.01,)), sampled=Curve((1, 64), (0.004, 0.068)))


def test_its_rows_count_where_the_head_does(make, toy):
    """In what a step is predicted to take, and in how much it may carry."""
    drive = make({"slo_tbt": 0.1}, None, lambda plan: MODEL.seconds(work_of(plan)), connect=False)
    drive.connect(measured=MODEL)
    drive.submit(toy.request("s", toy.prompt(20), max_tokens=60, ignore_eos=True))
    for _ in range(20):
        drive.advance()
    drive.submit(toy.request("p", toy.prompt(400, 1), prompt_logprobs=0))
    drive.run()
    with_prompt = [plan for plan in drive.plans if plan.scored]
    assert sum(plan.scored for plan in with_prompt) == 399
    assert [work_of(plan).sampled for plan in with_prompt] == [
        sum(plan.samples) + plan.scored for plan in with_prompt
    ]
    beside = [plan for plan in with_prompt if plan.decodes]
    assert len(beside) > 3 and max(MODEL.seconds(work_of(plan)) for plan in beside) <= 0.1 * 1.001
    plain = Budget(toy.settings(slo_tbt=0.1), toy.facts(), MODEL).allow(1, 30, 0).tokens
    assert max(plan.tokens for plan in beside) < plain / 3


def test_a_prompt_is_not_held_to_it_where_it_is_not_told_of(toy):
    budget = Budget(toy.settings(slo_tbt=0.1), toy.facts(), MODEL)
    assert budget.allow(2, 90, 50, scored=True).tokens < budget.allow(2, 90, 50).tokens
    most = budget.allow(2, 90, 50, scored=True).tokens
    assert (
        MODEL.seconds(Work(most, 2, 92, 1, 0, most))
        <= 0.1
        < MODEL.seconds(Work(most + 16, 2, 92, 1, 0, most + 16))
    )
