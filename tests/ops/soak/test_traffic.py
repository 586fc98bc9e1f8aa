"""The acts are drawn from the seed alone, and every kind comes."""

from collections import Counter

from pillion.ops.soak.traffic import Traffic


def test_the_same_seed_draws_the_same_acts() -> None:
    one, two, other = (Traffic(seed, 50) for seed in (1, 1, 2))
    acts = [one.act() for _ in range(100)]
    assert acts == [two.act() for _ in range(100)]
    assert acts != [other.act() for _ in range(100)]


def test_every_kind_and_manner_comes() -> None:
    acts = [traffic.act() for traffic in [Traffic(3, 50)] for _ in range(2000)]
    kinds, manners = Counter(act.kind for act in acts), Counter(act.manner for act in acts)
    assert set(kinds) == {
        "whole", "stream", "n", "stop", "sampled", "structured",
        "long prompt", "prefix", "leaves", "half sent", "slow",
        "deleted", "delete unknown", "idle", "look", "tokenize", "invalid",
    }  # fmt: skip
    assert set(manners) == {"read", "slow", "leave", "half", "delete", "idle"}
    assert {act.fresh for act in acts} == {True, False}
