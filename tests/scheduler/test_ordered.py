"""What an administrator's words do to the core: limits of its steps, and the prefix cache's end."""

import pytest

from pillion.contracts.entries import Control, StepLimits
from pillion.scheduler.messages import Ordered


def order(drive, **word):
    drive.handle(Ordered(Control(epoch=1, **word)))


def test_what_was_cached_is_computed_again_and_only_that(make, toy):
    drive = make({"max_num_batched_tokens": 64})
    size, prompt = toy.facts().block_size, toy.prompt(100)
    drive.submit(toy.request("a", prompt, max_tokens=4))
    drive.run()
    cached = drive.core.snapshot().cached_blocks
    assert cached >= 100 // size
    order(drive, flush=True)
    snapshot = drive.core.snapshot()
    assert (snapshot.cached_blocks, snapshot.free_blocks) == (0, snapshot.blocks)
    assert snapshot.flushed_blocks == cached
    for name, hits in (("b", 0), ("c", 100 // size * size)):
        before = drive.core.snapshot().hit_tokens
        drive.submit(toy.request(name, prompt, max_tokens=4))
        drive.run()
        assert drive.core.snapshot().hit_tokens - before == hits
    drive.check_outputs("a", "b", "c")


def test_who_runs_keeps_its_blocks_and_leaves_nothing_behind(make, toy):
    drive = make({"max_num_batched_tokens": 64})
    prompt, hits = toy.prompt(200), []
    drive.submit(toy.request("a", prompt, max_tokens=40, ignore_eos=True))
    drive.finish_step()  # a part of its prompt
    held = drive.core.snapshot().referenced_blocks
    assert drive.core.snapshot().prefilling and held
    order(drive, flush=True)
    drive.core.check()
    assert drive.core.snapshot().referenced_blocks >= held
    drive.run()
    # What it computed after that is shared with nobody either, and in nobody's way.
    for name in ("b", "c"):
        before = drive.core.snapshot().hit_tokens
        drive.submit(toy.request(name, prompt, max_tokens=4))
        drive.run()
        hits.append(drive.core.snapshot().hit_tokens - before)
    drive.core.check()
    assert hits == [0, 200 // toy.facts().block_size * toy.facts().block_size]
    drive.check_outputs("a", "b", "c")


def test_steps_keep_to_the_limit_until_it_is_taken_back(make, toy):
    drive = make({"max_num_batched_tokens": 64})
    widest = []
    for tokens in (None, 32, 4096, None):
        order(drive, limits=StepLimits(tokens))
        known = len(drive.plans)
        drive.submit(toy.request(f"r{len(widest)}", toy.prompt(300, len(widest)), max_tokens=2))
        drive.run()
        widest.append(max(plan.tokens for plan in drive.plans[known:]))
    most = toy.facts().max_step_tokens
    assert widest == [64, 32, 300, 64]
    # It holds over an executor's end too, and never goes over what the executor takes.
    order(drive, limits=StepLimits(1 << 20))
    drive.disconnect()
    drive.connect()
    assert drive.core.snapshot().step_limit == most


@pytest.mark.parametrize("configured", [None, 0.05])
def test_a_limit_of_tokens_leaves_the_target_and_the_other_way_round(make, configured):
    drive = make({"slo_tbt": configured})
    target = configured or 0.1
    for limits, tokens, seconds in (
        (StepLimits(32), 32, target),
        (StepLimits(None, 0.2), None, 0.2),
        (StepLimits(), None, target),
    ):
        order(drive, limits=limits)
        snapshot = drive.core.snapshot()
        assert snapshot.step_target == seconds
        assert snapshot.step_limit == (tokens or drive.executor.facts.max_step_tokens)
