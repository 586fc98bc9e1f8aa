"""Whose constraint is compiled next."""

from pillion.gateway.turns import REMEMBERED, Turns, Who


def order(turns: "Turns[str]", seconds: float = 1.0) -> list[str]:
    taken = []
    while (found := turns.take()) is not None:
        who, work = found
        turns.charge(who, seconds)
        taken.append(work)
    return taken


def test_tenants_take_turns_however_much_one_brings() -> None:
    turns = Turns[str](9, 99)
    for number in range(3):
        turns.add(Who("a"), 1, f"a{number}")
    turns.add(Who("b"), 1, "b0")
    turns.add(Who("b"), 1, "b1")
    assert order(turns) == ["a0", "b0", "a1", "b1", "a2"]


def test_who_costs_much_waits_longer() -> None:
    turns = Turns[str](9, 99)
    for number in range(2):
        turns.add(Who("slow"), 1, f"slow{number}")
    for number in range(4):
        turns.add(Who("quick"), 1, f"quick{number}")
    taken = []
    while (found := turns.take()) is not None:
        taken.append(found[1])
        turns.charge(found[0], 5.0 if found[0] == Who("slow") else 1.0)
    assert taken == ["slow0", "quick0", "quick1", "quick2", "quick3", "slow1"]


def test_idling_saves_nothing_up() -> None:
    turns = Turns[str](9, 99)
    for number in range(5):
        turns.add(Who("busy"), 1, f"b{number}")
    for number in range(3):
        assert turns.take() == (Who("busy"), f"b{number}")
        turns.charge(Who("busy"), 10.0)
    for number in range(3):
        turns.add(Who("idle"), 1, f"i{number}")
    assert order(turns, 10.0) == ["i0", "b3", "i1", "b4", "i2"], "not all of the idle one's first"


def test_short_ones_first_and_only_so_many() -> None:
    turns = Turns[str](3, 99)
    assert [turns.add(Who("a"), size, str(size)) for size in (9, 2, 5, 1)] == [True, True, True, False]
    assert turns.add(Who("b"), 1, "b")
    assert order(turns) == ["2", "b", "5", "9"]


def test_what_is_dropped_is_not_taken() -> None:
    turns = Turns[str](3, 99)
    turns.add(Who("a"), 1, "one")
    turns.add(Who("a"), 1, "two")
    turns.drop(Who("a"), "one")
    turns.drop(Who("a"), "one")
    assert order(turns) == ["two"]
    turns.add(Who("a"), 1, "three")
    turns.drop(Who("a"), "three")
    assert turns.take() is None


def test_senders_of_a_tenant_take_turns_in_its_share() -> None:
    turns = Turns[str](2, 4)
    made_up = [turns.add(Who("proxy", f"s{number}"), 1, f"p{number}") for number in range(5)]
    assert made_up == [True] * 4 + [False], "however many it names, so many of a tenant's wait"
    assert [turns.add(Who("direct"), 1, f"d{number}") for number in range(3)] == [True, True, False]
    assert order(turns) == ["p0", "d0", "p1", "d1", "p2", "p3"]


def test_a_senders_many_delay_no_other_of_the_tenant() -> None:
    turns = Turns[str](9, 99)
    for number in range(3):
        turns.add(Who("proxy", "busy"), 1, f"b{number}")
    assert turns.take() == (Who("proxy", "busy"), "b0")
    turns.charge(Who("proxy", "busy"), 5.0)
    for number in range(2):
        turns.add(Who("proxy", "quiet"), 1, f"q{number}")
    assert order(turns, 5.0) == ["q0", "b1", "q1", "b2"]


def test_names_that_are_made_up_take_no_memory() -> None:
    turns = Turns[str](9, 99)
    for number in range(3 * REMEMBERED):
        who = Who("proxy", str(number))
        turns.add(who, 1, "work")
        assert turns.take() == (who, "work")
        turns.charge(who, 1.0 + number)
    turns.add(Who("proxy", str(number)), 1, "who had the most")
    turns.add(Who("proxy", "new"), 1, "who had nothing")
    assert turns.take() == (Who("proxy", "new"), "who had nothing")
    assert len(turns._senders["proxy"]._had) <= REMEMBERED + 2
