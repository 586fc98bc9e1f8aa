"""Whose constraint is compiled next."""

from pillion.gateway.turns import Turns


def order(turns: "Turns[str]", seconds: float = 1.0) -> list[str]:
    taken = []
    while (found := turns.take()) is not None:
        tenant, work = found
        turns.charge(tenant, seconds)
        taken.append(work)
    return taken


def test_tenants_take_turns_however_much_one_brings() -> None:
    turns = Turns[str](9)
    for number in range(3):
        turns.add("a", 1, f"a{number}")
    turns.add("b", 1, "b0")
    turns.add("b", 1, "b1")
    assert order(turns) == ["a0", "b0", "a1", "b1", "a2"]


def test_who_costs_much_waits_longer() -> None:
    turns = Turns[str](9)
    for number in range(2):
        turns.add("slow", 1, f"slow{number}")
    for number in range(4):
        turns.add("quick", 1, f"quick{number}")
    taken = []
    while (found := turns.take()) is not None:
        taken.append(found[1])
        turns.charge(found[0], 5.0 if found[0] == "slow" else 1.0)
    assert taken == ["slow0", "quick0", "quick1", "quick2", "quick3", "slow1"]


def test_idling_saves_nothing_up() -> None:
    turns = Turns[str](9)
    for number in range(5):
        turns.add("busy", 1, f"b{number}")
    for number in range(3):
        assert turns.take() == ("busy", f"b{number}")
        turns.charge("busy", 10.0)
    for number in range(3):
        turns.add("idle", 1, f"i{number}")
    assert order(turns, 10.0) == ["i0", "b3", "i1", "b4", "i2"], "not all of the idle one's first"


def test_short_ones_first_and_only_so_many() -> None:
    turns = Turns[str](3)
    assert [turns.add("a", size, str(size)) for size in (9, 2, 5, 1)] == [True, True, True, False]
    assert turns.add("b", 1, "b")
    assert order(turns) == ["2", "b", "5", "9"]


def test_what_is_dropped_is_not_taken() -> None:
    turns = Turns[str](3)
    turns.add("a", 1, "one")
    turns.add("a", 1, "two")
    turns.drop("a", "one")
    turns.drop("a", "one")
    assert order(turns) == ["two"]
    turns.add("a", 1, "three")
    turns.drop("a", "three")
    assert turns.take() is None
