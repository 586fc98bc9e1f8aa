"""Prompts are the seed's, and have in common what they should."""

import random

from pillion.ops.traces import Arrival, prompt, tokens
from pillion.ops.traces.arrival import IDS


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def test_prompts_are_ordinary_tokens_of_the_seed():
    drawn = prompt(random.Random(1), 1000)
    assert drawn == prompt(random.Random(1), 1000) != prompt(random.Random(2), 1000)
    assert len(drawn) == 1000 and set(drawn) <= set(IDS)


def test_tokens_are_of_the_seed_and_begin_like_no_other_s():
    arrival = Arrival(0.0, 300, 5)
    indices = [*range(300), 131_071, 131_072, 131_073, 10_000_000]
    found = {index: tokens(1, index, arrival) for index in indices}
    assert all(len(each) == 300 and set(each) <= set(IDS) for each in found.values())
    assert len({each[:16] for each in found.values()}) == len(found)
    assert found[7] == tokens(1, 7, arrival) != tokens(2, 7, arrival)


def test_a_prompt_may_be_longer_than_the_tape():
    assert len(tokens(1, 0, Arrival(0.0, 300_000, 1))) == 300_000


def test_a_group_has_its_prefix_in_common_and_no_more():
    group = [tokens(1, index, Arrival(0.0, 200, 5, group=3, prefix=64)) for index in range(5)]
    assert {common(group[0], other) for other in group[1:]} == {64}
    other = tokens(1, 0, Arrival(0.0, 200, 5, group=4, prefix=64))
    assert common(other, group[0]) == 0
    assert tokens(1, 9, Arrival(0.0, 40, 5, group=3, prefix=64)) == group[0][:40]
    alone = tokens(1, 0, Arrival(0.0, 200, 5, prefix=64))  # of no group
    assert common(alone, group[0]) == 0
