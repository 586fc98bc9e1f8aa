"""The core's promises one by one, on a toy executor."""

from pillion.scheduler.messages import StepDone


def test_submit_chunk_decode_finish(make, toy):
    drive = make({"max_num_batched_tokens": 64})
    drive.submit(*(toy.request(str(i), toy.prompt(150 + i, i)) for i in range(3)))
    drive.run()
    drive.check_outputs("0", "1", "2")
    assert max(plan.tokens for plan in drive.plans) <= 64
    assert sum(plan.tokens for plan in drive.plans if plan.decodes and plan.tokens > plan.decodes) > 0
    assert drive.core.snapshot().referenced_blocks == 0


def test_the_next_plan_is_there_before_the_step_ends_and_not_sooner(make, toy):
    drive = make({}, {}, lambda plan: 0.05)
    drive.submit(toy.request("a", toy.prompt(20), max_tokens=60, ignore_eos=True))
    for _ in range(60):
        drive.advance()
    while drive.wake is None:
        drive.advance()
    early = drive.ends - drive.wake  # before the step's end
    assert len(drive.in_flight) == 1 and 0 < early < 0.01
    # Who arrives before that moment is in the very next step.
    drive.now = drive.wake - 0.001
    drive.submit(toy.request("b", toy.prompt(20, 1), arrival=1.0))
    assert len(drive.in_flight) == 1
    drive.advance()
    assert [take.request.id for take in drive.plans[-1].take] == ["b"] and len(drive.in_flight) == 2
    # The decode in it was planned while its previous token was unknown.
    assert drive.plans[-1].starts[0] == drive.plans[-2].starts[0] + 1
    drive.run()
    drive.check_outputs()


def test_the_lead_grows_while_the_executor_is_seen_idle(toy, make):
    drive = make({}, {}, lambda plan: 0.05)
    drive.submit(toy.request("a", toy.prompt(20), max_tokens=200, ignore_eos=True))
    leads, high = [], []
    for _ in range(60):
        while drive.wake is None:
            drive.finish_step()
        leads.append(drive.ends - drive.wake)
        drive.advance()
        plan = drive.in_flight.popleft()
        drive.now, drive.ends = drive.ends, drive.ends + 0.05
        drive.handle(
            StepDone(plan.step, drive.executor.run(plan), 0.05, gap_seconds=0.002 if len(leads) < 30 else 0.0)
        )
        high.append(drive.core.snapshot().factors[1])
    assert leads[29] > leads[5] + 0.02
    assert leads[29] < 0.06 and leads[-1] < leads[30] * 0.9
    assert min(high[20:30]) > 1.03 > min(high[40:])  # streams wait for it too


def test_an_executor_that_had_nothing_to_do_makes_nobody_late(toy, make):
    drive = make({}, {}, lambda plan: 0.05)
    for number in range(10):
        drive.submit(toy.request(str(number), toy.prompt(20), max_tokens=1))
        plan = drive.in_flight.popleft()
        drive.handle(StepDone(plan.step, drive.executor.run(plan), 0.05, gap_seconds=5.0))
    snapshot = drive.core.snapshot()
    assert snapshot.steps == 10 and snapshot.factors[1] < 1.05


def test_priorities_and_ageing_order_the_queue(make, toy):
    drive = make({"max_num_batched_tokens": 16, "priority_ageing": 10.0, "prefill_guard": "turns"})
    drive.submit(toy.request("running", toy.prompt(16), priority=-5, max_tokens=1))
    drive.submit(
        toy.request("late", toy.prompt(16, 3), arrival=12.0, max_tokens=1),
        toy.request("old", toy.prompt(16, 1), priority=1, arrival=0.0, max_tokens=1),
        toy.request("urgent", toy.prompt(16, 2), arrival=5.0, max_tokens=1),
    )
    drive.run()
    drive.check_outputs()
    order = [take.request.id for plan in drive.plans for take in plan.take]
    assert order == ["running", "urgent", "old", "late"]  # a level of priority weighs ten seconds of waiting


def test_equal_priorities_do_not_preempt_for_a_slot_and_lower_ones_do(make, toy):
    for priority, preemptions in ((0, 0), (1, 1)):
        drive = make({"max_num_seqs": 1})
        drive.submit(toy.request("first", toy.prompt(40), priority=priority, max_tokens=30, ignore_eos=True))
        for _ in range(5):
            drive.advance()
        drive.submit(toy.request("second", toy.prompt(40, 1), arrival=1.0))
        drive.run()
        drive.check_outputs()
        assert drive.core.snapshot().preemptions == preemptions


def test_a_request_that_fails_each_step_ends_alone(make, toy):
    drive = make({"max_num_batched_tokens": 64})
    drive.submit(*(toy.request(str(i), toy.prompt(10, i), arrival=float(i), max_tokens=40) for i in range(4)))
    poison = toy.request("poison", toy.prompt(10, 9), arrival=1.5)
    drive.submit(poison)
    failed = 0
    while drive.in_flight or drive.wake is not None:
        if not drive.in_flight:
            drive.advance()
            continue
        plan = drive.in_flight[0]
        bad = any(
            drive.core._requests.get("poison") and sequence.request.id == "poison"
            for flight in list(drive.core._flights)[:1]
            for sequence in flight.rows
        )
        assert plan.step
        failed += bad
        drive.finish_step(fail=bad)
    drive.check_outputs("0", "1", "2", "3")
    assert failed >= 4 and drive.streams["poison", 0].finish == "error"
    assert "toy failure" in drive.streams["poison", 0].error


def test_what_the_executor_cannot_run_takes_its_blocks_out_of_the_index(make, toy):
    from pillion.scheduler.messages import RowResult, StepDone

    drive = make({"max_num_batched_tokens": 64}, {}, lambda plan: 0.1)
    prompt = toy.prompt(64, 1)
    drive.submit(toy.request("bad", prompt))
    drive.submit(toy.request("next", (*prompt, 5, 6), seed=1, arrival=1.0))
    while len(drive.in_flight) < 2:
        drive.advance()
    # "next" goes on behind the blocks of "bad", in a plan in flight; then "bad" turns out not to run at all.
    assert drive.streams == {} and drive.plans[1].starts[-1] == 64
    plan = drive.in_flight.popleft()
    (take,) = plan.take
    drive.executor._apply(plan)
    drive.executor.slots[take.slot].ended = True
    drive.executor.tainted_until = 2  # the toy runs "next" on what is not there
    drive.handle(
        StepDone(1, (RowResult(take.slot, take.incarnation, (), "error", None, "no grammar"),), 0.001)
    )
    assert drive.streams["bad", 0].error == "no grammar"
    drive.run()
    drive.check_outputs("next")
    assert drive.streams["next", 0].cached == 64  # of its first turn; then it computed all of it
    assert drive.plans[-1].step > 2 and any(plan.starts[0] == 0 and plan.step > 2 for plan in drive.plans)


def test_nothing_that_a_failed_prompt_computed_is_offered_again(make, toy):
    """A row without numbers spoils rows before it in its chunk; that shows where the last one samples."""
    import dataclasses

    drive = make({"max_num_batched_tokens": 32})
    prompt = toy.prompt(70, 1)
    drive.submit(toy.request("bad", prompt))
    while not drive.plans[-1].samples[-1]:
        drive.finish_step()
    assert [plan.counts for plan in drive.plans][:3] == [(32,), (32,), (6,)]
    while drive.in_flight:
        plan = drive.in_flight.popleft()
        rows = tuple(
            dataclasses.replace(row, tokens=(), finish="error", error="the largest logit is nan")
            for row in drive.executor.run(plan)
        )
        drive.handle(StepDone(plan.step, rows, 0.001))
    assert drive.streams["bad", 0].error == "the largest logit is nan"
    drive.submit(toy.request("again", prompt, seed=1, arrival=1.0))
    drive.run()
    drive.check_outputs("again")
    assert drive.streams["again", 0].cached == 0


def test_requests_wait_for_the_first_executor(make, toy):
    drive = make(connect=False)
    drive.submit(toy.request("a", toy.prompt(20)), toy.request("long", toy.prompt(5000)))
    assert not drive.plans and drive.core.snapshot().waiting == 2 and drive.core.max_model_len == 0
    drive.connect()
    assert drive.refusals["long"].status == 400
    drive.submit(toy.request("a", toy.prompt(20)))  # delivered twice
    drive.run()
    drive.check_outputs("a")


def test_a_lost_executor_costs_nothing_but_time(make, toy):
    drive = make({"max_num_batched_tokens": 64})
    drive.submit(*(toy.request(str(i), toy.prompt(70, i), max_tokens=40, ignore_eos=True) for i in range(6)))
    for _ in range(20):
        drive.finish_step()
    known = {key: len(stream.tokens) for key, stream in drive.streams.items()}
    assert sum(known.values()) > 6
    drive.disconnect()
    assert drive.core.snapshot().waiting == 6
    drive.connect(toy.facts(num_blocks=200, block_size=8))  # another pool
    assert drive.core.snapshot().blocks == 199 and drive.plans[-1].step == 1
    drive.run()
    drive.check_outputs()
    assert drive.core.snapshot().preemptions == 0


def test_a_step_is_trimmed_to_the_tile(make, toy):
    options = {"max_num_batched_tokens": 64, "min_prefill_share": 0.5, "enable_prefix_caching": False}
    drive = make(options, {"max_step_tokens": 100, "tile": 16})
    drive.submit(*(toy.request(str(i), toy.prompt(2, i), max_tokens=300, ignore_eos=True) for i in range(70)))
    while drive.core.snapshot().decoding < 70:
        drive.advance()
    drive.submit(toy.request("p", toy.prompt(200, 99), arrival=1.0))
    count = len(drive.plans)
    while len(drive.plans) < count + 2:
        drive.advance()
    plan = drive.plans[-1]
    # Half of the budget of 64 is the prompts'; the executor's limit of 100 leaves 68 decodes their turn.
    assert (plan.budget, plan.decodes) == (100, 68)
    assert (plan.tokens, plan.counts[68:]) == (96, (28,))


def test_no_row_is_planned_behind_the_last_token(make, toy):
    drive = make()
    drive.submit(toy.request("a", toy.prompt(20), max_tokens=8, ignore_eos=True))
    drive.run()
    assert sum(plan.tokens for plan in drive.plans if not plan.decodes) == 20
    assert sum(sum(plan.samples) for plan in drive.plans) == 8


def test_a_victim_of_its_own_first_step_leaves_nothing_in_the_index(make, toy):
    drive = make({"max_num_seqs": 1, "priority_ageing": 10.0})
    drive.submit(toy.request("running", toy.prompt(5), priority=-5))
    drive.submit(
        toy.request("old", toy.prompt(40, 1), priority=1, arrival=0.0),
        toy.request("late", toy.prompt(40, 3), priority=0, arrival=12.0),
    )
    drive.run()
    # Ageing lets "old" in first, and the same plan takes its slot away again for the higher priority.
    assert drive.core.snapshot().preemptions == 1
    assert [take.request.id for plan in drive.plans for take in plan.take] == ["running", "late", "old"]
    assert drive.streams["old", 0].cached == 0
    drive.check_outputs()


def test_when_nobody_can_go_on_the_latest_yields(make, toy):
    executor = {"num_blocks": 25, "block_size": 4, "max_model_len": 96, "tile": 1}
    drive = make({"max_num_seqs": 2}, executor)
    drive.submit(
        *(
            toy.request(str(i), toy.prompt(8, i), arrival=float(i), max_tokens=60, ignore_eos=True)
            for i in (0, 1)
        )
    )
    while drive.core.snapshot().decoding < 2:
        drive.advance()
    for sequence in drive.core._roster.decoding:
        sequence.preemptions = 3  # neither is a victim of the other, and both need more than there is
    drive.run()
    drive.check_outputs()
    assert drive.core.snapshot().preemptions == 1
    assert [take.request.id for plan in drive.plans for take in plan.take] == ["0", "1", "1"]


def test_an_oldest_prompt_that_lacks_blocks_does_not_yield_to_the_decodes_that_took_them(make, toy):
    executor = {"num_blocks": 25, "block_size": 4, "max_model_len": 96, "tile": 1}
    drive = make({"max_num_seqs": 2, "max_num_batched_tokens": 8, "watermark": 0.0}, executor)
    old = toy.request("old", toy.prompt(60), arrival=0.0, max_tokens=30, ignore_eos=True)
    drive.submit(toy.request("late", toy.prompt(30, 1), arrival=1.0, max_tokens=60, ignore_eos=True))
    while drive.core.snapshot().decoding < 1:
        drive.advance()
    drive.core._roster.decoding[0].preemptions = 3  # it is no victim of the other
    drive.submit(old)
    drive.run()
    drive.check_outputs()
    taken = [take.request.id for plan in drive.plans for take in plan.take]
    assert taken == ["late", "old", "late"]


def test_running_prompts_go_before_waiting_ones_of_their_priority(make, toy):
    drive = make({"max_num_batched_tokens": 32, "priority_ageing": 10.0})
    drive.submit(toy.request("running", toy.prompt(100), arrival=5.0, max_tokens=1))
    drive.submit(toy.request("earlier", toy.prompt(40, 1), arrival=1.0, max_tokens=1))
    drive.submit(toy.request("urgent", toy.prompt(40, 2), arrival=9.0, priority=-1, max_tokens=1))
    drive.run()
    drive.check_outputs()
    assert drive.finished == ["urgent", "running", "earlier"]
    assert drive.core.snapshot().preemptions == 0
