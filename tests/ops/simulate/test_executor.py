"""Plans are honoured exactly, and take as long as the cost model says of what is computed."""

import random

import pytest

from pillion.contracts.entries import Request, Sampling
from pillion.ops.simulate.executor import TOKEN, Drawn, Executor
from pillion.scheduler.messages import Plan, RowResult, Take
from pillion.steptime import Work


def take(slot: int, incarnation: int, tokens: int, prompt: int, most: int) -> Take:
    request = Request("r", "g", "m", ((1,) * prompt,), Sampling(seed=0), arrival=0.0)
    return Take(slot, incarnation, request, 0, (1,) * tokens, prompt, (), most)


def plan(step: int, rows: list[tuple[int, int, int, int]], decodes: int, **changes) -> Plan:
    """Rows are slot, start, count, samples."""
    slots, starts, counts, samples = zip(*rows, strict=True)
    values = {"release": (), "take": ()} | changes
    return Plan(
        step=step, slots=slots, starts=starts, counts=counts, samples=samples,
        block_counts=(0,) * len(rows), blocks=(), decodes=decodes, budget=512, **values,
    )  # fmt: skip


def test_a_chunk_brings_a_token_only_where_it_ends_its_prompt():
    executor = Executor(lambda work: 0.001 * work.rows)
    first = executor.run(plan(1, [(0, 0, 64, 0)], 0, take=(take(0, 1, 100, 100, 3),)))
    assert first.rows == () and first.seconds == pytest.approx(0.064)
    last = executor.run(plan(2, [(0, 64, 36, 1)], 0))
    assert last.rows == (RowResult(0, 1, (TOKEN,)),)
    assert last.works == (Work(rows=36, chunks=1, pairs=36 * (64 + 18), sampled=1),)


def test_a_sequence_ends_at_its_length_and_is_not_computed_any_more():
    executor = Executor(lambda work: 0.001 * work.rows)
    executor.run(plan(1, [(0, 0, 10, 1), (1, 0, 9, 1)], 0, take=(take(0, 1, 10, 10, 2), take(1, 2, 9, 9, 9))))
    both = executor.run(plan(2, [(0, 10, 1, 1), (1, 9, 1, 1)], 2))
    assert [row.finish for row in both.rows] == ["length", None]
    one = executor.run(plan(3, [(0, 11, 1, 1), (1, 10, 1, 1)], 2))
    assert one.rows == (RowResult(1, 2, (TOKEN,)),)
    assert one.works == (Work(rows=1, decodes=1, context=11, sampled=1),) and one.seconds == 0.001


def test_what_a_sequence_brought_before_counts():
    executor = Executor(lambda work: 0.0)
    again = executor.run(plan(1, [(0, 0, 14, 1)], 0, take=(take(0, 7, 14, 10, 5),)))
    assert again.rows[0].finish == "length"  # four before, one now


def test_a_plan_of_several_steps_brings_several_tokens_and_ends_early_where_no_row_is_left():
    executor = Executor(lambda work: 0.01)
    executor.run(plan(1, [(0, 0, 10, 1), (1, 0, 9, 1)], 0, take=(take(0, 1, 10, 10, 3), take(1, 2, 9, 9, 5))))
    done = executor.run(plan(2, [(0, 10, 1, 2), (1, 9, 1, 4)], 2))
    assert [(row.tokens, row.finish) for row in done.rows] == [
        ((TOKEN,) * 2, "length"),
        ((TOKEN,) * 4, "length"),
    ]
    assert [work.decodes for work in done.works] == [2, 2, 1, 1]
    assert [work.context for work in done.works] == [21, 23, 12, 13]
    assert done.seconds == pytest.approx(0.04)
    nothing = executor.run(plan(3, [(0, 12, 1, 3), (1, 13, 1, 3)], 2))
    assert nothing.rows == nothing.works == () and nothing.seconds == 0


def test_slots_that_nobody_holds_are_a_fault():
    executor = Executor(lambda work: 0.0)
    with pytest.raises(KeyError):
        executor.run(plan(1, [(0, 0, 4, 0)], 0))
    executor.run(plan(1, [(0, 0, 4, 1)], 0, take=(take(0, 1, 4, 4, 9),)))
    with pytest.raises(KeyError):
        executor.run(plan(2, [(0, 4, 1, 1)], 1, release=(0,)))


def test_times_are_drawn_between_the_quantiles():
    drawn = Drawn(lambda work: 2.0, (0.5, 1.0, 3.0), random.Random(1))
    times = [drawn(Work(1)) for _ in range(2000)]
    assert 1.0 <= min(times) < 1.02 and 5.9 < max(times) <= 6.0
    assert sum(time <= 2.0 for time in times) == pytest.approx(1000, abs=80)  # the middle one is the median
    assert Drawn(lambda work: 2.0, (), random.Random(1))(Work(1)) == 2.0
    again = Drawn(lambda work: 2.0, (0.5, 1.0, 3.0), random.Random(1))
    assert [again(Work(1)) for _ in range(5)] == times[:5]
