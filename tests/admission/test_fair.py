"""Who goes first: priorities, then the tenant that was served least, then arrival."""

import itertools
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillion.admission.fair import Shares
from pillion.admission.line import Line, Waiting, prompt_tokens
from pillion.admission.policy import Arrived, Forward, Forwarded, Heard, Policy, Reported
from pillion.admission.tenants import Tenants
from pillion.config import TenantLimits
from pillion.contracts.entries import Request, Spent, Usage
from tests.admission.conftest import make_beat, make_facts, make_request

NOW = 1_800_000_000.0


def shares(**weights: float) -> Shares:
    return Shares(lambda tenant: weights.get(tenant, 1.0))


def waiting(id: str, tenant: str, prompt: int = 10, output: float = 0.0, **changes: Any) -> Waiting:
    arrival = changes.pop("arrival", NOW)
    request = make_request(prompt, id=id, tenant=tenant, arrival=arrival, **changes)
    return Waiting(request, "1-0", NOW, prompt_tokens(request), prompt_tokens(request), output)


def walk(line: Line, shares: Shares) -> list[str]:
    """Lets all in, one after the other, and counts each."""
    order = []
    for one in line:
        order.append(one.request.id)
        line.remove(one.request.id)
        shares.go(one.request.tenant, one.share)
    return order


class TestCounters:
    def test_grow_by_tokens_over_weight(self):
        counters = shares(a=2.0)
        counters.go("a", 10)
        counters.go("b", 10)
        counters.correct("b", -4)
        assert (counters["a"], counters["b"], counters["c"]) == (5, 6, 0)

    def test_a_tenant_that_wakes_is_lifted_to_the_least_that_waits(self):
        counters = shares()
        for tenant, tokens in (("a", 50), ("b", 30), ("idle", 3), ("debtor", 90)):
            counters.go(tenant, tokens)
        counters.wake("idle", ["a", "b"])
        counters.wake("debtor", ["a", "b"])
        assert (counters["idle"], counters["debtor"]) == (30, 90)

    def test_or_to_where_the_last_went_on_where_nobody_waits(self):
        counters = shares()
        for _ in range(3):
            counters.go("a", 50)
        counters.wake("new", [])
        assert counters["new"] == 100  # a went on at 0, 50 and 100

    def test_a_successor_saves_nobody_s_credit_either(self):
        counters = shares()
        counters.restore([("a", 70.0), ("b", 20.0)])
        counters.wake("new", [])
        assert counters["new"] == 70


class TestOrder:
    def test_the_tenant_that_was_served_least_goes_first(self):
        counters = shares()
        line = Line(10.0, counters)
        for number in range(4):
            line.add(waiting(f"a{number}", "a", 100, arrival=NOW + number))
        for number in range(3):
            line.add(waiting(f"b{number}", "b", 50, arrival=NOW + 10 + number))
        assert walk(line, counters) == ["a0", "b0", "b1", "a1", "b2", "a2", "a3"]

    def test_a_weight_of_two_is_served_twice_as_much(self):
        counters = shares(a=2.0)
        line = Line(10.0, counters)
        for number in range(30):
            line.add(waiting(f"a{number}", "a", 10, arrival=NOW + number))
            line.add(waiting(f"b{number}", "b", 10, arrival=NOW + number))
        assert Counter(name[0] for name in walk(line, counters)[:30]) == {"a": 20, "b": 10}

    def test_priorities_come_first_and_age_by_the_oldest_of_each(self):
        counters = shares()
        counters.go("a", 1000)
        line = Line(10.0, counters)
        line.add(waiting("old", "a", arrival=NOW - 10.1, priority=1))
        line.add(waiting("new", "b", arrival=NOW))
        line.add(waiting("high", "a", arrival=NOW + 5, priority=-1))
        assert walk(line, counters) == ["high", "old", "new"]

    @given(data=st.data())
    @settings(max_examples=200, deadline=None)
    def test_what_is_said_to_be_ahead_is_what_goes_before(self, data: Any):
        weights = {tenant: data.draw(st.sampled_from([0.5, 1.0, 3.0])) for tenant in "abc"}
        counters = shares(**weights)
        for tenant in "abc":
            counters.go(tenant, data.draw(st.integers(0, 300)))
        line = Line(10.0, counters)
        rows = data.draw(
            st.lists(
                st.tuples(st.sampled_from("abc"), st.integers(1, 99), st.integers(0, 60), st.floats(0, 9)),
                min_size=1, max_size=12,
            )
        )  # fmt: skip
        made = [
            waiting(f"{number}", tenant, prompt, output, arrival=NOW + arrival)
            for number, (tenant, prompt, output, arrival) in enumerate(rows)
        ]
        for one in made[:-1]:
            line.add(one)
        ahead = line.ahead(made[-1])
        line.add(made[-1])
        order = walk(line, counters)
        before = order[: order.index(made[-1].request.id)]
        assert ahead.sequences == len(before)
        assert ahead.tokens == sum(rows[int(name)][1] for name in before)

    def test_other_priorities_are_ahead_by_their_claim(self):
        line = Line(10.0, shares())
        line.add(waiting("high", "a", 7, arrival=NOW + 9, priority=-1))
        line.add(waiting("later", "a", 5, arrival=NOW + 11, priority=-1))
        line.add(waiting("low", "a", 3, arrival=NOW - 11, priority=1))
        assert line.ahead(waiting("x", "b", arrival=NOW)).tokens == 10

    def test_the_line_is_empty_after_all_have_left(self):
        counters = shares()
        line = Line(10.0, counters)
        for number, (tenant, priority) in enumerate(itertools.product("abc", (-1, 0, 2))):
            line.add(waiting(str(number), tenant, priority=priority))
        assert len(walk(line, counters)) == 9
        assert (len(line), line.tokens, list(line)) == (0, 0, [])


def drive(core: Policy, rows: list[tuple[str, Request, int]], ends: list[int]) -> tuple[list[Any], float]:
    """A replica that runs three requests at a time and ends them in the order of `ends`.

    Answers (tenant, counters, who waits) after every change, and the bound.
    """
    numbers = itertools.count(1)
    actual = {request.id: output for _, request, output in rows}
    flying: list[Any] = []
    seen: list[Any] = []
    largest = in_flight = 0.0

    def act(event: Any) -> None:
        nonlocal largest, in_flight
        for action in core.handle(event, NOW):
            if isinstance(action, Forward):
                one = action.waiting
                flying.append(one)
                largest = max(largest, one.share)
                core.handle(Forwarded(one.entry, "0", f"{next(numbers)}-0"), NOW)
                in_flight = max(
                    in_flight,
                    *(
                        sum(
                            max(f.share, f.suffix + actual[f.request.id])
                            for f in flying
                            if f.request.tenant == t
                        )
                        for t in "ab"
                    ),
                )
                seen.append((dict(core.tenants.shares.counters), {w.request.tenant for w in core.line}))

    for _, request, _ in rows:
        act(Arrived(request, f"{next(numbers)}-0"))
    for end in itertools.cycle(ends):
        for _ in range(3 - len(flying)):
            act(Heard(make_beat(last_entry=f"{next(numbers)}-0", credit=0)))
        if not flying:
            break
        one = flying.pop(end % len(flying))
        spent = Spent(one.request.id, one.suffix, actual[one.request.id])
        act(Reported(Usage("0", ended=(spent,)), f"{next(numbers)}-0"))
        seen.append((dict(core.tenants.shares.counters), {w.request.tenant for w in core.line}))
    return seen, largest + 2 * in_flight


@pytest.mark.parametrize("weights", [{}, {"b": TenantLimits(weight=2.0)}], ids=["equal", "weighted"])
@given(
    sizes=st.lists(st.tuples(st.integers(1, 120), st.integers(1, 90)), min_size=30, max_size=40),
    heavy=st.integers(1, 7),
    ends=st.lists(st.integers(0, 20), min_size=1, max_size=20),
)
@settings(max_examples=25, deadline=None)
def test_two_backlogged_tenants_differ_by_no_more_than_the_bound(
    weights: Any, sizes: Any, heavy: int, ends: Any
):
    core = Policy(1000, 10.0, tenants=Tenants(TenantLimits(), weights))
    rows = []
    for number, (prompt, output) in enumerate(sizes):
        # One sends long requests, the other short ones.
        tenant = "ab"[number % 2]
        length = prompt * heavy if tenant == "a" else prompt
        request = make_request(length, id=f"{number}", tenant=tenant, max_tokens=100, arrival=NOW + number)
        rows.append((tenant, request, output))
    core.handle(Heard(make_beat(credit=0, uncomputed=1)), NOW)  # no room until all are there
    seen, bound = drive(core, rows, ends)
    assert not len(core.line) and not len(core.tenants)  # all went on and ended: nobody starved
    both = [counters for counters, waits in seen if waits == {"a", "b"}]
    assert len(both) > 5
    assert max(abs(counters["a"] - counters["b"]) for counters in both) <= bound
    used = {t: sum(len(r.prompts[0]) + output for tenant, r, output in rows if tenant == t) for t in "ab"}
    weight = weights["b"].weight if weights else 1.0
    assert core.tenants.shares["a"] == pytest.approx(used["a"])
    assert core.tenants.shares["b"] == pytest.approx(used["b"] / weight)


def test_one_that_floods_does_not_keep_another_waiting():
    core = Policy(1000, 10.0)
    core.handle(Heard(make_beat(credit=0, uncomputed=1)), NOW)
    for number in range(200):
        core.handle(
            Arrived(make_request(50, id=f"flood{number}", tenant="a", arrival=NOW), f"{number}-1"), NOW
        )
    core.handle(Arrived(make_request(50, id="one", tenant="b", arrival=NOW + 60), "999-1"), NOW)
    (first, *_) = [
        action.waiting.request.id
        for action in core.handle(Heard(make_beat(credit=200, uncomputed=0)), NOW)
        if isinstance(action, Forward)
    ][1:]
    assert first == "one"  # the second: only one of the flood's was before it


@pytest.mark.parametrize(("seats", "most"), [(8, 16), (1, 9), (30, 60)])
def test_as_many_wait_at_a_replica_as_can_run_and_no_more_however_short_they_are(seats: int, most: int):
    core = Policy(1000, 10.0)
    facts = make_facts(max_num_seqs=seats)
    core.handle(Heard(make_beat(credit=1_000_000, facts=facts)), NOW)
    went = []
    for number in range(100):
        request = make_request(1, id=f"flood{number}", tenant="a", arrival=NOW)
        went += core.handle(Arrived(request, f"{number}-1"), NOW)
    assert len(went) == most and len(core.line) == 100 - most
    core.handle(Arrived(make_request(1, id="one", tenant="b", arrival=NOW + 60), "999-1"), NOW)
    for number in range(most):
        core.handle(Forwarded(f"{number}-1", "0", f"{number + 1}-0"), NOW)
    beat = make_beat(credit=1_000_000, facts=facts, last_entry=f"{most}-0", running=seats)
    assert core.handle(Heard(msgspec.structs.replace(beat, waiting=most - seats)), NOW) == []
    _, second = core.handle(Heard(msgspec.structs.replace(beat, waiting=most - seats - 2)), NOW)
    assert isinstance(second, Forward) and second.waiting.request.id == "one"  # only one was before it


def test_a_full_line_has_room_for_a_tenant_with_less_in_it():
    core = Policy(4, 10.0)
    core.handle(Heard(make_beat(credit=0, uncomputed=1)), NOW)
    for number in range(4):
        core.handle(
            Arrived(make_request(id=f"a{number}", tenant="a", arrival=NOW + number), f"{number}-1"), NOW
        )
    (refuse,) = core.handle(Arrived(make_request(id="b0", tenant="b", arrival=NOW + 9), "8-1"), NOW)
    assert (refuse.waiting.request.id, refuse.reason) == ("a3", "queue_full")
    (refuse,) = core.handle(Arrived(make_request(id="a4", tenant="a", arrival=NOW), "9-1"), NOW)
    assert refuse.waiting.request.id == "a4"
    core.handle(Arrived(make_request(id="b1", tenant="b", arrival=NOW + 9), "10-1"), NOW)
    (refuse,) = core.handle(Arrived(make_request(id="b2", tenant="b", arrival=NOW + 9), "11-1"), NOW)
    assert refuse.waiting.request.id == "b2"  # two each: it is its own
    assert len(core.tenants) == len(core.line) == 4
