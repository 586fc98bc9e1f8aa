"""Buckets that reserve by the mean and settle with what was used; accounts that a successor takes over."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pillion.admission.line import Waiting, prompt_tokens
from pillion.admission.tenants import GRACE, GUESS, KNOWN, SWEEP, Tenants
from pillion.config import TenantLimits
from pillion.contracts.entries import Rate, Spent
from tests.admission.conftest import make_request

NOW = 1_800_000_000.0


def waiting(
    tenants: Tenants, tenant: str = "a", prompt: int = 10, entry: str = "1-0", **changes: Any
) -> Waiting:
    request = make_request(prompt, tenant=tenant, **changes)
    tokens = prompt_tokens(request)
    return Waiting(request, entry, NOW, tokens, tokens, tenants.expected(request))


def let_in(tenants: Tenants, now: float = NOW, **changes: Any) -> Waiting:
    one = waiting(tenants, **changes)
    assert tenants.short(one, now) is None
    tenants.reserve(one, now, None)
    tenants.go(one.request.id)
    return one


def make(own: dict[str, TenantLimits] | None = None, **default: Any) -> Tenants:
    return Tenants(TenantLimits(**default), own or {})


class TestLimits:
    def test_a_minute_s_requests_may_come_at_once_and_then_as_they_fill_up(self):
        tenants = make(rpm=3)
        for _ in range(3):
            let_in(tenants)
        short = tenants.short(waiting(tenants), NOW + 5)
        assert short is not None and (short.limit, short.most) == ("rpm", 3)
        assert short.retry_after == pytest.approx(15)
        let_in(tenants, NOW + 20.001)
        assert tenants.short(waiting(tenants), NOW + 20.001) is not None
        assert tenants.short(waiting(tenants, tenant="b"), NOW) is None  # has buckets of its own

    def test_how_a_tenant_stands_with_its_limits(self):
        tenants = make(rpm=3, tpm=100)
        let_in(tenants, prompt=60, max_tokens=20)
        assert tenants.rates("a", NOW) == (
            Rate("requests", 3, 2, pytest.approx(20)),
            Rate("tokens", 100, 20, pytest.approx(48)),
        )
        assert tenants.rates("a", NOW + 30) == (Rate("requests", 3, 3, 0), Rate("tokens", 100, 70, 18))
        assert make(concurrency=3).rates("a", NOW) == ()

    def test_tokens_are_prompt_and_expected_output(self):
        tenants = make(tpm=100)
        let_in(tenants, prompt=60, max_tokens=20)
        short = tenants.short(waiting(tenants, prompt=30, max_tokens=20), NOW)
        assert short is not None and short.limit == "tpm"
        assert short.retry_after == pytest.approx(30 * 0.6)
        assert tenants.short(waiting(tenants, prompt=10, max_tokens=10), NOW) is None

    def test_what_is_larger_than_the_bucket_passes_a_full_one_and_owes_the_rest(self):
        tenants = make(tpm=100)
        let_in(tenants, prompt=250, max_tokens=50)
        short = tenants.short(waiting(tenants, prompt=1, max_tokens=1), NOW + 60)
        assert short is not None and short.retry_after == pytest.approx(102 * 0.6)

    def test_sequences_at_once_and_one_request_always(self):
        tenants = make(concurrency=3)
        large = let_in(tenants, n=5)
        short = tenants.short(waiting(tenants), NOW)
        assert short is not None and (short.limit, short.retry_after) == ("concurrency", 1.0)
        tenants.ended(Spent(large.request.id, 10, 5), "2-0", NOW + 8)
        let_in(tenants, NOW + 10)
        let_in(tenants, NOW + 12)
        short = tenants.short(waiting(tenants, n=2), NOW + 13)
        assert short is not None and short.retry_after == pytest.approx(
            5
        )  # one takes 8 s, the oldest 3 so far

    def test_a_tenant_s_own(self):
        tenants = make({"vip": TenantLimits(rpm=1000)}, rpm=1)
        for _ in range(100):
            let_in(tenants, tenant="vip")
        let_in(tenants, tenant="b")
        assert tenants.short(waiting(tenants, tenant="b"), NOW) is not None


class TestSettling:
    def test_gives_back_what_was_too_much_and_takes_what_was_too_little(self):
        tenants = make(tpm=1000)
        one = let_in(tenants, prompt=400, max_tokens=200)
        assert one.output == GUESS
        tenants.ended(Spent(one.request.id, 100, 50), "2-0", NOW)  # 300 were cached
        assert tenants.short(waiting(tenants, prompt=800, max_tokens=50), NOW) is None
        assert tenants.short(waiting(tenants, prompt=801, max_tokens=50), NOW) is not None
        assert tenants.shares["a"] == 150
        two = let_in(tenants, prompt=10, max_tokens=500)
        assert two.output == 50  # the mean by now
        tenants.ended(Spent(two.request.id, 10, 500), "3-0", NOW)
        assert tenants.shares["a"] == 660

    def test_happens_once_and_not_for_an_earlier_life(self):
        tenants = make(tpm=1000)
        one = let_in(tenants, entry="5-0")
        tenants.ended(Spent(one.request.id, 10, 900), "4-9", NOW)
        assert one.request.id in tenants
        for _ in range(2):
            tenants.ended(Spent(one.request.id, 10, 5), "5-1", NOW)
        assert one.request.id not in tenants
        assert tenants.shares["a"] == 15

    def test_what_does_not_run_gives_all_back(self):
        tenants = make(rpm=1, tpm=100, concurrency=1)
        one = waiting(tenants, prompt=60)
        tenants.reserve(one, NOW, None)
        tenants.release(one.request.id, NOW)
        tenants.release(one.request.id, NOW)
        assert tenants.shares["a"] == 0
        let_in(tenants, prompt=60)

    def test_what_nobody_reports_is_given_up_after_its_deadline(self):
        tenants = make(concurrency=1)
        let_in(tenants, deadline=NOW + 100)
        assert tenants.expire(NOW + 100) == 0
        assert tenants.short(waiting(tenants), NOW + 100) is not None
        assert tenants.expire(NOW + 100 + GRACE + SWEEP) == 1
        assert tenants.short(waiting(tenants), NOW + 200) is None

    def test_tenants_that_are_long_away_are_forgotten(self):
        tenants = make()
        for number in range(KNOWN + 5):
            one = let_in(tenants, NOW + number, tenant=f"{number}")
            if number != 2:
                tenants.ended(Spent(one.request.id, 1, 1), "9-0", NOW + number)
        tenants.changes()
        tenants.expire(NOW)
        gone = {tenant for tenant, payload in tenants.changes()[0].items() if not payload}
        assert gone == {"0", "1", "3", "4", "5"}  # one of 2's is still here


class TestKeeping:
    def test_only_changes_are_kept_and_a_successor_goes_on_from_them(self):
        tenants, kept = make(rpm=5, tpm=1000), ({}, {})
        assert tenants.changes() == ({}, {})

        def keep() -> None:
            for hash_, changed in zip(kept, tenants.changes(), strict=True):
                for field, payload in changed.items():
                    hash_.pop(field, None)
                    if payload:
                        hash_[field] = payload

        one, two = let_in(tenants), let_in(tenants, tenant="b", prompt=70, entry="3-0")
        keep()
        tenants.ended(Spent(one.request.id, 10, 40), "4-0", NOW)
        keep()
        assert set(kept[0]) == {"a", "b"} and set(kept[1]) == {two.request.id}
        successor = make(rpm=5, tpm=1000)
        successor.restore(*kept)
        assert successor.changes() == ({}, {})
        assert successor.oldest() == "3-0"
        assert successor.shares["a"] == 50 and successor.shares["b"] == 75
        assert successor.output == 40
        successor.ended(Spent(two.request.id, 70, 5), "5-0", NOW)
        assert len(successor) == 0
        successor.keep_all()
        assert set(successor.changes()[0]) == {"a", "b"}

    def test_a_limit_that_is_new_starts_from_an_empty_bucket_not_from_debt(self):
        tenants = make()
        for _ in range(50):
            let_in(tenants)
        successor = make(rpm=60)
        successor.restore(*tenants.changes())
        assert successor.short(waiting(successor), NOW + 1.1) is None


class Buckets(RuleBasedStateMachine):
    """Whatever comes and ends in whatever order: what is set aside is accounted for."""

    def __init__(self) -> None:
        super().__init__()
        self.tenants = make({"b": TenantLimits(tpm=300, weight=2.0)}, rpm=6, tpm=500, concurrency=4)
        self.now = NOW
        self.open: dict[str, Waiting] = {}
        self.used = {"a": 0.0, "b": 0.0}
        self.entry = 0
        self.let_in = self.refused = 0

    def next(self) -> str:
        self.entry += 1
        return f"{self.entry}-0"

    @rule(
        tenant=st.sampled_from("ab"),
        prompt=st.integers(1, 400),
        output=st.integers(1, 200),
        n=st.integers(1, 3),
    )
    def arrive(self, tenant: str, prompt: int, output: int, n: int) -> None:
        one = waiting(self.tenants, tenant, prompt, self.next(), max_tokens=output, n=n)
        short = self.tenants.short(one, self.now)
        if short is None:
            self.tenants.reserve(one, self.now, None)
            self.tenants.go(one.request.id)
            self.open[one.request.id] = one
            Buckets.let_in += 1
        else:
            Buckets.refused += 1
            assert short.retry_after > 0
            # It fits when it is said to, if nothing else comes.
            if short.limit == "tpm":
                later = deepcopy(self.tenants).short(one, self.now + short.retry_after + 0.001)
                assert later is None or later.limit != "tpm"

    @precondition(lambda self: self.open)
    @rule(data=st.data(), cached=st.floats(0, 1), output=st.integers(0, 300))
    def end(self, data: Any, cached: float, output: int) -> None:
        one = self.open.pop(data.draw(st.sampled_from(sorted(self.open))))
        spent = Spent(one.request.id, int(one.tokens * (1 - cached)), output)
        self.tenants.ended(spent, self.next(), self.now)
        self.used[one.request.tenant] += spent.prompt + spent.output

    @rule(seconds=st.floats(0, 30))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def holds(self) -> None:
        assert len(self.tenants) == len(self.open)
        for tenant, weight in (("a", 1.0), ("b", 2.0)):
            mine = [one for one in self.open.values() if one.request.tenant == tenant]
            counted = self.used[tenant] + sum(one.share for one in mine)
            assert self.tenants.shares[tenant] == pytest.approx(counted / weight)
            assert tenant == "b" or sum(one.choices for one in mine) <= 4


def test_whatever_happens_the_books_are_right():
    Buckets.let_in = Buckets.refused = 0
    run_state_machine_as_test(
        Buckets, settings=settings(max_examples=50, stateful_step_count=40, deadline=None)
    )
    assert min(Buckets.let_in, Buckets.refused) > 50


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(1, 120)), min_size=5, max_size=60))
@settings(max_examples=100, deadline=None)
def test_no_more_than_a_bucket_and_what_fills_it_is_let_in(rows: list[Any]):
    tenants, now, passed = make(tpm=300), NOW, 0.0
    for seconds, prompt in rows:
        now += seconds
        one = waiting(tenants, prompt=prompt, max_tokens=1)
        if tenants.short(one, now) is None:
            tenants.reserve(one, now, None)
            passed += one.share
        assert passed <= 300 + (now - NOW) * 5 + 1e-6
