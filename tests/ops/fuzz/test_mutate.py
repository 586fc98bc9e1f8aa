"""Mutations: drawn from the seed alone, and different from what they were made of."""

import random

from pillion.ops.fuzz.mutate import bent, flipped

VALUE = {"a": [1, 2, {"b": "text"}], "c": 1.5, "d": None}


def test_the_same_seed_gives_the_same() -> None:
    data = bytes(range(100))
    for mutate, value in ((flipped, data), (bent, VALUE)):
        one, two = ([mutate(random.Random(seed), value) for seed in range(50)] for _ in range(2))
        assert list(map(repr, one)) == list(map(repr, two))
        assert sum(result != value for result in one) > 40
        assert len({repr(result) for result in one}) > 35


def test_what_is_mutated_is_left_as_it_is() -> None:
    before = repr(VALUE)
    for seed in range(200):
        bent(random.Random(seed), VALUE)
    assert repr(VALUE) == before


def test_nothing_is_too_short_to_be_mutated() -> None:
    for seed in range(200):
        flipped(random.Random(seed), b"")
        bent(random.Random(seed), {})
        bent(random.Random(seed), [])
