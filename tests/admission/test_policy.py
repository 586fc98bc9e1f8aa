"""Admission's decisions, as a pure function of what happened."""

import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from pillion.admission.limits import longest
from pillion.admission.policy import (
    Arrived,
    Cancelled,
    Drop,
    End,
    Forward,
    Forwarded,
    Heard,
    Policy,
    Refuse,
    Woken,
)
from pillion.admission.route import FORGET, FRESH
from pillion.contracts.entries import Facts, Heartbeat, Request, Sampling

NOW = 1_800_000_000.0


def facts(**changes: Any) -> Facts:
    values = {
        "model": "demo", "fingerprint": "f", "max_model_len": 1000, "vocab_size": 320, "end_tokens": (2,),
        "block_size": 16, "num_blocks": 101, "max_num_seqs": 8, "max_step_tokens": 512, "tile": 16,
        "dtype": "float32", "backend": "torch",
    }  # fmt: skip
    return Facts(**values | changes)


def beat(replica: str = "0", **changes: Any) -> Heartbeat:
    values = {"epoch": 1, "state": "ready", "facts": facts(), "credit": 100, "prefill_rate": 100.0}
    return Heartbeat(replica, **values | changes)


def request(id: str, prompt: int = 10, **changes: Any) -> Request:
    values = {
        "id": id, "gateway": "g", "model": "demo", "prompts": ((7,) * prompt,), "sampling": Sampling(seed=1),
        "arrival": NOW, "max_tokens": 5,
    }  # fmt: skip
    return Request(**values | changes)


def policy(*beats: Heartbeat, max_waiting: int = 100, ageing: float = 10.0) -> Policy:
    made = Policy(max_waiting, ageing)
    for each in beats:
        made.handle(Heard(each), NOW)
    return made


ENTRIES: dict[str, str] = {}
"""The latest entry of each request."""
_NUMBERS = itertools.count(1)


def arrive(core: Policy, *requests: Request, now: float = NOW) -> list[Any]:
    actions = []
    for each in requests:
        ENTRIES[each.id] = f"{int(now * 1000)}-{next(_NUMBERS)}"
        actions += core.handle(Arrived(each, ENTRIES[each.id]), now)
    return actions


def forwarded(actions: list[Any]) -> list[tuple[str, str]]:
    return [(a.waiting.request.id, a.replica) for a in actions if isinstance(a, Forward)]


class TestCredit:
    def test_is_spent_by_what_was_sent_and_given_back_by_heartbeats(self):
        core = policy(beat(credit=100))
        assert forwarded(arrive(core, request("a", 60), request("b", 40), request("c", 1))) == [
            ("a", "0"), ("b", "0"),
        ]  # fmt: skip
        assert core.replicas["0"].load == 100
        core.handle(Forwarded(ENTRIES["a"], "0", "5-1"), NOW)
        core.handle(Forwarded(ENTRIES["b"], "0", "5-2"), NOW)
        # The scheduler has read the first: it counts it, and we count the second still.
        assert forwarded(core.handle(Heard(beat(last_entry="5-1", uncomputed=60)), NOW)) == []
        assert core.replicas["0"].load == 100
        assert forwarded(core.handle(Heard(beat(last_entry="5-1", uncomputed=59)), NOW)) == [("c", "0")]

    def test_entry_ids_are_numbers(self):
        core = policy(beat(credit=1000))
        arrive(core, request("a", 60))
        core.handle(Forwarded(ENTRIES["a"], "0", "10-0"), NOW)
        core.handle(Heard(beat(last_entry="9-0")), NOW)
        assert core.replicas["0"].load == 60
        core.handle(Heard(beat(last_entry="10-0")), NOW)
        assert core.replicas["0"].load == 0

    def test_a_hand_over_that_the_heartbeat_overtook_is_not_counted_twice(self):
        core = policy(beat(credit=1000))
        arrive(core, request("a", 60))
        core.handle(Heard(beat(last_entry="5-1", uncomputed=60)), NOW)
        core.handle(Forwarded(ENTRIES["a"], "0", "5-1"), NOW)
        assert core.replicas["0"].load == 60

    def test_a_hand_over_that_was_none_is_given_back(self):
        core = policy(beat(credit=1000))
        arrive(core, request("a", 60))
        core.handle(Forwarded(ENTRIES["a"], "0", None), NOW)
        assert core.replicas["0"].load == 0

    def test_one_is_always_let_in_where_nothing_is_held(self):
        core = policy(beat(credit=10))
        assert forwarded(arrive(core, request("long", 900), request("next", 1))) == [("long", "0")]
        core.handle(Forwarded(ENTRIES["long"], "0", "5-1"), NOW)
        assert forwarded(core.handle(Heard(beat(last_entry="5-1", uncomputed=1, credit=0)), NOW)) == []
        assert forwarded(core.handle(Heard(beat(last_entry="5-1", uncomputed=0, credit=0)), NOW)) == [
            ("next", "0")
        ]

    def test_counts_every_choice(self):
        core = policy(beat(credit=100))
        both = request("a", prompts=((7,) * 10, (7,) * 20), n=3)
        arrive(core, both)
        assert core.replicas["0"].load == 90

    def test_a_new_scheduler_counts_itself_what_it_took_over(self):
        core = policy(beat(credit=100))
        arrive(core, request("a", 60))
        core.handle(Forwarded(ENTRIES["a"], "0", "5-1"), NOW)
        core.handle(Heard(beat(epoch=2, uncomputed=60)), NOW)
        assert core.replicas["0"].load == 60
        core.handle(Heard(beat(epoch=1, uncomputed=7)), NOW)  # of the one before, late
        assert core.replicas["0"].load == 60


class TestPace:
    def test_with_a_target_no_more_go_on_than_there_are_seats_for(self):
        full = beat(credit=10_000, prefill_rate=1000.0, running=2, seats=3)
        for slo, gone in ((60.0, ["a"]), (None, ["a", "b"])):
            core = Policy(100, 10.0, slo)
            core.handle(Heard(full), NOW)
            actions = arrive(core, request("a"), request("b"))
            assert [id for id, _ in forwarded(actions)] == gone
        core = Policy(100, 10.0, 60.0)
        core.handle(Heard(beat(running=0, seats=1)), NOW)
        assert forwarded(arrive(core, request("many", n=5))) == [("many", "0")]  # alone it may, always

    def test_nor_what_kv_could_not_hold_once_all_have_grown(self):
        # 1600 positions: 960 in use, and a request brings 128 until more is known.
        half = beat(credit=10_000, prefill_rate=1000.0, running=2, kv_usage=0.6)
        core = Policy(100, 10.0, 60.0)
        core.handle(Heard(half), NOW)
        actions = arrive(core, request("a", 400, max_tokens=300), request("b", 400, max_tokens=300))
        assert [id for id, _ in forwarded(actions)] == ["a"]


class TestOrder:
    def test_is_by_priority_then_arrival(self):
        core = policy()
        arrive(
            core,
            request("late", arrival=NOW + 1),
            request("early", arrival=NOW),
            request("low", arrival=NOW - 5, priority=1),
            request("high", arrival=NOW + 5, priority=-1),
        )
        actions = core.handle(Heard(beat(credit=1000)), NOW)
        assert [id for id, _ in forwarded(actions)] == ["high", "early", "late", "low"]

    def test_ages(self):
        core = policy(ageing=10.0)
        arrive(core, request("low", arrival=NOW - 10.1, priority=1), request("normal", arrival=NOW))
        arrive(core, request("lower", arrival=NOW - 9.9, priority=1))
        actions = core.handle(Heard(beat(credit=1000)), NOW)
        assert [id for id, _ in forwarded(actions)] == ["low", "normal", "lower"]

    def test_nobody_overtakes_who_waits_for_room(self):
        core = policy(beat(credit=100, uncomputed=50))
        assert forwarded(arrive(core, request("long", 80), request("short", 5, arrival=NOW + 1))) == []
        actions = core.handle(Heard(beat(credit=100, uncomputed=15)), NOW)
        assert forwarded(actions) == [("long", "0"), ("short", "0")]

    def test_a_model_without_room_holds_up_no_other(self):
        other = beat("1", facts=facts(model="other"))
        core = policy(beat(uncomputed=100), other)
        actions = arrive(core, request("a"), request("b", model="other"))
        assert forwarded(actions) == [("b", "1")]


class TestRoute:
    def test_goes_to_the_first_to_finish(self):
        slow, fast = beat("slow", prefill_rate=10.0), beat("fast", prefill_rate=100.0, uncomputed=50)
        assert forwarded(arrive(policy(slow, fast), request("a", 10))) == [("a", "fast")]
        busy = beat("fast", prefill_rate=100.0, uncomputed=95)
        assert forwarded(arrive(policy(slow, busy), request("a", 10))) == [("a", "slow")]

    def test_goes_back_to_where_its_prefix_is(self):
        core = policy(beat("a", credit=1000), beat("b", credit=1000))
        common = tuple(range(16))

        def prompt(id: str, salt: str = "") -> Request:
            return request(id, prompts=((*common, *(id.encode() * 10)),), cache_salt=salt)

        ((_, first),) = forwarded(arrive(core, prompt("1")))
        assert forwarded(arrive(core, prompt("2"))) == [("2", first)]  # though the other is idle
        ((_, salted),) = forwarded(arrive(core, prompt("3", "salt")))
        assert salted != first
        core.handle(Heard(beat(first, uncomputed=100)), NOW)
        core.handle(Heard(beat(salted, credit=1000, uncomputed=0)), NOW)
        assert forwarded(arrive(core, prompt("4"))) == [("4", salted)]  # no room there: not at any price

    def test_only_to_who_is_ready_and_fresh(self):
        for changes in ({"state": "unready"}, {"state": "starting"}, {"state": "draining"}, {"facts": None}):
            assert arrive(policy(beat(**changes)), request("a")) == []
        core = policy(beat())
        assert arrive(core, request("a"), now=NOW + FRESH + 0.1) == []
        assert forwarded(core.handle(Heard(beat()), NOW + 4)) == [("a", "0")]

    def test_not_by_what_was_left_in_redis(self):
        core = policy()
        core.handle(Heard(beat(), live=False), NOW)
        assert arrive(core, request("a")) == []  # known to be served, held
        assert forwarded(core.handle(Heard(beat()), NOW)) == [("a", "0")]

    def test_a_replica_that_lost_its_executor_keeps_its_model(self):
        core = policy(beat(), beat(state="unready", facts=None))
        assert arrive(core, request("a")) == []
        assert forwarded(core.handle(Heard(beat()), NOW)) == [("a", "0")]

    def test_what_comes_again_goes_where_it_went(self):
        core = policy(beat("a", credit=1000), beat("b", credit=1000))
        ((_, first),) = forwarded(arrive(core, request("x", 100)))
        core.handle(Heard(beat(first, credit=1000, uncomputed=500)), NOW)
        assert forwarded(arrive(core, request("x", 100))) == [("x", first)]
        ((_, second),) = forwarded(arrive(core, request("y", 100)))
        assert second != first

    def test_only_to_who_is_large_enough(self):
        small, large = beat("small", facts=facts(num_blocks=5), credit=500), beat("large", uncomputed=100)
        core = policy(small, large)
        assert arrive(core, request("a", 100)) == []
        assert forwarded(arrive(core, request("b", 50))) == [("b", "small")]  # a waits for the large one
        actions = core.handle(Heard(beat("large", credit=500)), NOW)
        assert forwarded(actions) == [("a", "large")]

    def test_of_a_prompt_that_nothing_is_wanted_of_the_last_token_is_computed_too(self):
        small, large = beat("small", facts=facts(num_blocks=5), credit=500), beat("large", uncomputed=100)
        core = policy(small, large)
        for prompt, output, where in ((64, 1, "small"), (64, 0, "small"), (65, 0, None)):
            gone = forwarded(arrive(core, request(f"{prompt}-{output}", prompt, max_tokens=output)))
            assert gone == ([(f"{prompt}-{output}", where)] if where else [])
        assert forwarded(core.handle(Heard(beat("large", credit=500)), NOW)) == [("65-0", "large")]


class TestRefusal:
    @pytest.mark.parametrize("model_len, blocks", [(1000, 101), (1000, 11)])
    def test_of_what_can_never_fit_is_exact(self, model_len: int, blocks: int):
        each = facts(max_model_len=model_len, num_blocks=blocks)
        limit = longest(each)
        assert limit == min(model_len, (blocks - 1) * 16 + 1)
        whole = min(model_len, (blocks - 1) * 16)  # a prompt of which nothing is wanted
        fitting = [(limit - 1, 1), (limit - 5, 5), (1, limit - 1), (limit - 1, None), (whole, 0)]
        for prompt, output in fitting:
            # By the rule: blocks for all positions but the last output token's.
            assert -(-(prompt + (output or 1) - 1) // 16) <= blocks - 1
            actions = arrive(policy(beat(facts=each)), request("a", prompt, max_tokens=output))
            assert forwarded(actions) == [("a", "0")]
        cases = [
            (limit, 1, "prompt"),
            (limit, None, "prompt"),
            (limit + 1, 1, "prompt"),
            (limit - 4, 5, "max_tokens"),
            (whole + 1, 0, "prompt"),
        ]
        for prompt, output, param in cases:
            (refuse,) = arrive(policy(beat(facts=each)), request("a", prompt, max_tokens=output))
            assert (refuse.refusal.status, refuse.refusal.param) == (400, param)
            assert refuse.refusal.code == "context_length_exceeded"
            assert f"at most {limit if output != 0 else whole} tokens" in refuse.refusal.message
            assert ("10 blocks of 16" in refuse.refusal.message) == (blocks == 11)
            assert f"the prompt has {prompt}" in refuse.refusal.message

    def test_by_the_longest_of_several_prompts(self):
        both = request("a", prompts=((7,) * 10, (7,) * 1000))
        (refuse,) = arrive(policy(beat()), both)
        assert refuse.reason == "too_long"

    @pytest.mark.parametrize(
        "changes, param",
        [({"prompts": ()}, "prompt"), ({"prompts": ((7,), ())}, "prompt"), ({"max_tokens": -1}, "max_tokens"),
         ({"max_tokens": -3}, "max_tokens"), ({"n": 0}, "n")],
    )  # fmt: skip
    def test_of_what_no_replica_could_run(self, changes: dict[str, Any], param: str):
        (refuse,) = arrive(policy(beat()), request("a", **changes))
        assert (refuse.refusal.status, refuse.refusal.param, refuse.reason) == (400, param, "invalid")

    def test_of_an_unknown_model_only_when_all_models_are_known(self):
        stranger = request("a", model="gone")
        assert arrive(policy(), stranger) == []
        assert arrive(policy(beat(), beat("1", state="unready", facts=None)), stranger) == []
        (refuse,) = arrive(policy(beat()), stranger)
        assert (refuse.refusal.status, refuse.refusal.code, refuse.refusal.param) == (
            404, "model_not_found", "model",
        )  # fmt: skip

    def test_of_those_that_waited_for_the_first_facts(self):
        core = policy()
        assert arrive(core, request("long", 5000), request("gone", model="gone"), request("good")) == []
        actions = core.handle(Heard(beat(credit=1000)), NOW)
        assert [(a.waiting.request.id, a.reason) for a in actions if isinstance(a, Refuse)] == [
            ("long", "too_long"), ("gone", "model_not_found"),
        ]  # fmt: skip
        assert forwarded(actions) == [("good", "0")]
        assert len(core.line) == 0

    def test_a_silent_replica_s_model_is_forgotten_in_the_end(self):
        core = policy(beat("old", facts=facts(model="old")))
        core.handle(Heard(beat()), NOW + FORGET - 1)
        assert arrive(core, request("a", model="old"), now=NOW + FORGET - 1) == []
        actions = core.handle(Heard(beat()), NOW + FORGET + 1)
        assert len(core.replicas) == 1
        (refuse,) = [*actions, *arrive(core, request("b", model="old"), now=NOW + FORGET + 1)]
        assert refuse.reason == "model_not_found"

    def test_of_too_many_says_when_to_come_back(self):
        core = policy(beat(credit=0, uncomputed=1, prefill_rate=10.0), max_waiting=2)
        assert arrive(core, request("a", 40), request("b", 60)) == []
        (refuse,) = arrive(core, request("c", 5))
        assert (refuse.refusal.status, refuse.refusal.code, refuse.reason) == (
            429,
            "queue_full",
            "queue_full",
        )
        assert refuse.refusal.retry_after == 10.0  # 100 tokens at 10 a second
        assert [waiting.request.id for waiting in core.line] == ["a", "b"]

    def test_is_none_where_a_replica_has_room_though_the_line_is_full(self):
        core = policy(beat(uncomputed=100), beat("1", facts=facts(model="other")), max_waiting=1)
        arrive(core, request("a"))
        assert forwarded(arrive(core, request("b", model="other"))) == [("b", "1")]

    def test_is_none_of_who_was_forwarded_at_once_while_too_many_wait(self):
        core = policy(beat(uncomputed=100), beat("1", facts=facts(model="other")), max_waiting=1)
        arrive(core, request("a", resumed=True), request("b", resumed=True))  # these are never put out
        assert forwarded(arrive(core, request("c", model="other"))) == [("c", "1")]
        assert [waiting.request.id for waiting in core.line] == ["a", "b"]

    def test_of_the_late(self):
        core = policy()
        assert arrive(core, request("a", deadline=NOW + 5), request("b", deadline=NOW + 9)) == []
        assert core.wake_at == NOW + 5
        (refuse,) = core.handle(Woken(), NOW + 5)
        assert (refuse.waiting.request.id, refuse.refusal.status, refuse.reason) == ("a", 504, "deadline")
        assert core.wake_at == NOW + 9
        (refuse,) = arrive(core, request("c", deadline=NOW), now=NOW)
        assert refuse.reason == "deadline"


class TestCancel:
    def test_takes_a_waiting_request_out(self):
        core = policy()
        arrive(core, request("a"), request("b"))
        (end,) = core.handle(Cancelled("a"), NOW)
        assert isinstance(end, End)
        assert end.waiting.request.id == "a"
        assert forwarded(core.handle(Heard(beat()), NOW)) == [("b", "0")]

    def test_of_each_choice_is_one_of_all(self):
        core = policy()
        arrive(core, request("a", prompts=((7,), (8,)), n=2))
        for choice in (0, 2, 2, 3):
            assert core.handle(Cancelled("a", choice), NOW) == []
        (end,) = core.handle(Cancelled("a", 1), NOW)
        assert isinstance(end, End)

    def test_a_parked_one_leaves_without_a_word_and_its_next_life_waits_on(self):
        core = policy()
        arrive(core, request("a"), request("b", life=2))
        (end,) = core.handle(Cancelled("a", park=True), NOW)
        assert (end.waiting.request.id, end.park) == ("a", True)
        assert core.handle(Cancelled("b", park=True, life=1), NOW) == []
        assert [waiting.request.id for waiting in core.line] == ["b"]

    def test_of_who_is_not_there_is_nothing(self):
        core = policy(beat())
        arrive(core, request("a"))
        assert core.handle(Cancelled("a"), NOW) == []  # it was forwarded
        assert core.handle(Cancelled("never"), NOW) == []

    def test_found_as_a_tombstone_ends_it_unseen(self):
        core = policy(beat())
        (end,) = core.handle(Arrived(request("a"), "1-0", cancelled=True), NOW)
        assert isinstance(end, End)
        assert len(core.line) == 0


def test_a_second_entry_of_a_waiting_request_takes_the_place_of_the_first():
    core = policy()
    core.handle(Arrived(request("a"), "1-0"), NOW)
    assert core.handle(Arrived(request("a"), "2-0"), NOW) == [Drop("1-0")]
    (forward,) = core.handle(Heard(beat()), NOW)
    assert forward.waiting.entry == "2-0"
    assert core.line.tokens == 0


class Admission(RuleBasedStateMachine):
    """Whatever happens in whatever order: each entry is acted on once, credit holds, the line is bounded."""

    seen: Counter[str] = Counter()

    @initialize(max_waiting=st.integers(1, 4))
    def start(self, max_waiting: int) -> None:
        self.core = Policy(max_waiting, 10.0)
        self.now = NOW
        self.numbers = itertools.count(1)
        self.open: dict[str, str] = {}  # entry to request: handed in, not acted on
        self.handing: list[tuple[str, str, int]] = []  # entry, replica, tokens
        self.run: dict[str, list[tuple[int, int]]] = {"0": [], "1": []}  # entry number, tokens: not consumed
        self.uncomputed = {"0": 0, "1": 0}
        self.consumed = {"0": 0, "1": 0}

    def act(self, event: Any) -> None:
        for action in self.core.handle(event, self.now):
            entry = action.entry if isinstance(action, Drop) else action.waiting.entry
            assert entry in self.open, f"{action} is the second for its entry"
            del self.open[entry]
            self.seen[type(action).__name__] += 1
            if isinstance(action, Forward):
                tokens, name = action.waiting.tokens, action.replica
                held = self.uncomputed[name] + sum(t for _, t in self.run[name])
                held += sum(t for _, replica, t in self.handing if replica == name)
                assert held == 0 or held + tokens <= 100
                self.handing.append((entry, name, tokens))

    @rule(
        id=st.sampled_from("abcdefgh"),
        prompt=st.integers(1, 120),
        model=st.sampled_from(["demo", "demo", "gone"]),
        priority=st.integers(-1, 1),
        deadline=st.none() | st.floats(0, 20),
        tombstone=st.sampled_from([False, False, False, True]),
    )
    def arrive(
        self, id: str, prompt: int, model: str, priority: int, deadline: float | None, tombstone: bool
    ) -> None:
        entry = f"{next(self.numbers)}-0"
        self.open[entry] = id
        late = None if deadline is None else self.now + deadline
        one = request(id, prompt, model=model, priority=priority, deadline=late, arrival=self.now)
        self.act(Arrived(one, entry, tombstone))

    @rule(id=st.sampled_from("abcdefgh"))
    def cancel(self, id: str) -> None:
        self.act(Cancelled(id))
        assert self.core.line.get(id) is None

    @rule(done=st.booleans())
    def confirm(self, done: bool) -> None:
        if self.handing:
            source, name, tokens = self.handing.pop(0)
            number = next(self.numbers)
            if done:
                self.run[name].append((number, tokens))
            self.act(Forwarded(source, name, f"{number}-0" if done else None))

    @rule(name=st.sampled_from("01"), read=st.integers(0, 3), computed=st.integers(0, 200))
    def beat(self, name: str, read: int, computed: int) -> None:
        for number, tokens in self.run[name][:read]:
            self.consumed[name], self.uncomputed[name] = number, self.uncomputed[name] + tokens
        del self.run[name][:read]
        self.uncomputed[name] = max(0, self.uncomputed[name] - computed)
        word = beat(name, last_entry=f"{self.consumed[name]}-0", uncomputed=self.uncomputed[name])
        self.act(Heard(word))

    @rule(seconds=st.floats(0, 5))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        wake = self.core.wake_at
        if wake is not None and wake <= self.now:
            self.act(Woken())
            assert self.core.wake_at is None or self.core.wake_at > self.now

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "core"):
            return
        assert len(self.core.line) <= self.core.max_waiting
        assert {waiting.entry for waiting in self.core.line} == set(self.open)
        assert self.core.line.tokens == sum(waiting.tokens for waiting in self.core.line)
        for name in ("0", "1"):
            if name in self.core.replicas.ready(self.now):
                sent = sum(t for _, t in self.run[name]) + sum(t for _, r, t in self.handing if r == name)
                assert self.core.replicas[name].load == self.uncomputed[name] + sent


def test_whatever_happens_each_entry_is_acted_on_once_and_credit_holds():
    Admission.seen.clear()
    chosen = settings(max_examples=150, stateful_step_count=40, deadline=None)
    run_state_machine_as_test(Admission, settings=chosen)
    assert min(Admission.seen[kind] for kind in ("Forward", "Refuse", "End", "Drop")) > 20


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.floats(0, 100), st.integers(1, 50)), min_size=1, max_size=30),
    st.floats(0.5, 60),
)
def test_the_line_is_in_order_of_priority_less_what_was_waited(rows: list[Any], ageing: float):
    core = policy(ageing=ageing)
    requests = [
        request(f"{n:02d}", prompt, priority=priority, arrival=NOW + arrival)
        for n, (priority, arrival, prompt) in enumerate(rows)
    ]
    arrive(core, *requests)
    weights = [w.request.priority + (w.request.arrival - NOW) / ageing for w in core.line]
    assert len(weights) == len(rows)
    assert all(a <= b + 1e-6 for a, b in itertools.pairwise(weights))
