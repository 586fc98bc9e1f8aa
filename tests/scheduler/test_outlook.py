"""What a heartbeat tells of the steps to come follows from the policy that makes them."""

import pytest

from pillion.contracts.entries import Heartbeat
from pillion.scheduler.beat import heartbeat
from pillion.scheduler.budget import Budget
from pillion.scheduler.outlook import UNKNOWN, outlook
from pillion.scheduler.policies import POLICIES
from pillion.scheduler.policies import make as policy
from pillion.scheduler.work import work_of
from pillion.steptime import Curve, StepTime, Work

MODEL = StepTime(base=0.004, rows=Curve((16, 512), (0.003, 0.1)), pair=2e-8, context=2e-7)
LIMIT = 256


def told(toy, name, decodes, context, left=0, slots=512, facts=None, **settings):
    budget = Budget(toy.settings(**settings), toy.facts(**{"max_step_tokens": 512, **(facts or {})}), MODEL)
    return outlook(policy(name), budget, decodes, context, left, slots), budget


def step(rows, decodes, context):
    chunk = rows - decodes
    return Work(rows, decodes, context + decodes, 1, chunk * chunk / 2, decodes)


def test_the_outlook_is_what_full_steps_carry(toy):
    idle, _ = told(toy, "stall-free", 0, 0, slo_tbt=0.05)
    busy, budget = told(toy, "stall-free", 60, 60 * 300, slo_tbt=0.05)
    rows = budget.allow(60, 60 * 300, 0).tokens
    assert busy.step_seconds == MODEL.seconds(step(rows, 60, 60 * 300)) <= 0.05
    assert busy.prefill_rate == (rows - 60) / busy.step_seconds < idle.prefill_rate
    assert busy.intake == busy.prefill_rate and busy.idle_rate == idle.prefill_rate
    # One more and a step no longer keeps the target, or the prompts lose their share.
    assert 60 < busy.seats < 512
    most, more = (budget.allow(seats, seats * 300, 0).tokens for seats in (busy.seats, busy.seats + 1))
    assert MODEL.seconds(step(most, busy.seats, busy.seats * 300)) <= 0.05
    assert MODEL.seconds(step(more, busy.seats + 1, (busy.seats + 1) * 300)) > 0.05


def test_seats_are_slots_turns_and_never_none(toy):
    assert told(toy, "stall-free", 0, 0, slots=7, slo_tbt=9)[0].seats == 7
    turns = {"max_num_batched_tokens": 64, "prefill_guard": "turns", "slo_tbt": 9}
    assert told(toy, "stall-free", 0, 0, **turns)[0].seats == 56  # more would have to take turns
    assert told(toy, "fixed-budget", 0, 0, **turns)[0].seats == 56
    assert told(toy, "stall-free", 4, 100, slo_tbt=0.001)[0].seats == 1
    unknown = Budget(toy.settings(), toy.facts())
    assert outlook(policy("stall-free"), unknown, 3, 100, 0, 64) == UNKNOWN


def test_seats_do_not_come_and_go_with_what_few_steps_exceed(toy):
    seats = set()
    budget = Budget(toy.settings(slo_tbt=0.05), toy.facts(max_step_tokens=512), MODEL)
    for number in range(400):
        budget.cost.learn(
            step(64, 8, 800), MODEL.seconds(step(64, 8, 800)) * (1.3 if number % 8 == 0 else 1.0)
        )
        seats.add(outlook(policy("stall-free"), budget, 60, 60 * 300, 0, 512).seats)
    assert budget.cost.factors[1] > 1.2
    assert max(seats) <= 1.1 * min(seats)


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"stall-free"}))
def test_who_does_not_keep_the_target_has_seats_for_all_that_run(toy, policy):
    """Else admission would hold back what the policy lets run."""
    assert told(toy, policy, 4, 1200, slots=100, slo_tbt=0.001)[0].seats == 100
    # What is no more in a step has none.
    assert 400 < told(toy, policy, 4, 1200, slots=600, max_num_batched_tokens=LIMIT)[0].seats <= 512


def driven(make, toy, policy, decodes=20):
    """So many that decode, and many prompts that wait; prompts bring a token and are gone."""
    drive = make(
        {"policy": policy, "max_num_batched_tokens": LIMIT, "slo_tbt": 0.03, "enable_prefix_caching": False},
        {"max_step_tokens": 512},
        lambda plan: MODEL.seconds(work_of(plan)),
        connect=False,
    )
    drive.connect(measured=MODEL)
    requests = (toy.request(f"d{i}", toy.prompt(20, i), max_tokens=60, ignore_eos=True) for i in range(20))
    drive.submit(*requests)
    while drive.core.snapshot().decoding < decodes:
        drive.advance()
    # Beside the decodes two fill a step, or where there is one prompt a step four chunks of one.
    length = 4 * (LIMIT - 20) if policy == "sarathi" else (LIMIT - 20) // 2
    late = (toy.request(f"p{i}", toy.prompt(length, i + 50), arrival=1.0, max_tokens=1) for i in range(60))
    drive.submit(*late)
    return drive


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"request-level"}))
def test_prompts_that_wait_go_as_fast_as_is_told(make, toy, policy):
    drive = driven(make, toy, policy)
    seen, first = drive.core.snapshot(), len(drive.plans)
    while len(drive.plans) < first + 20:
        drive.advance()
    plans = drive.plans[first:]
    assert drive.core.snapshot().uncomputed > 1000  # they wait all the time
    prompts = sum(sum(plan.counts[plan.decodes :]) for plan in plans)
    seconds = sum(plan.steps * MODEL.seconds(work_of(plan)) for plan in plans)
    assert seen.prefill_rate == pytest.approx(prompts / seconds, rel=0.06)
    beat = heartbeat(Heartbeat("r", 1, "ready"), seen, 2.0)
    assert beat.credit == int(2 * seen.prefill_rate) and beat.prefill_rate == seen.prefill_rate


def test_prompts_that_wait_for_a_batch_go_when_it_has_ended(make, toy):
    drive = driven(make, toy, "request-level", decodes=19)  # the first was a batch by itself
    seen, began = drive.core.snapshot(), drive.now
    while ("p0", 0) not in drive.times:
        drive.advance()
    wait = drive.times["p0", 0][0] - began
    assert seen.prefill_rate * wait == pytest.approx(LIMIT, rel=0.15)
    assert seen.step_seconds < 2 * MODEL.seconds(Work(20, 20, 2000))
    # It holds what its next batch can take meanwhile: that goes at once.
    assert seen.idle_rate > 5 * seen.prefill_rate
    assert heartbeat(Heartbeat("r", 1, "ready"), seen, 2.0).credit == int(2 * seen.idle_rate)
