"""Several replicas: what waits for a loss to heal, who is dead, and where what comes again goes. Pure."""

from typing import Any

from pillion.admission.policy import (
    QUIET,
    Arrived,
    Drop,
    Forward,
    Generation,
    Gone,
    Heard,
    Policy,
    Restored,
    Returned,
    Woken,
)
from pillion.admission.route import FRESH, Replica
from pillion.admission.takeover import LOOK, Vigil
from tests.admission.conftest import make_beat, make_facts, make_request

NOW = 1_800_000_000.0


def policy(*beats: Any, max_waiting: int = 100) -> Policy:
    made = Policy(max_waiting, 10.0)
    for beat in beats:
        made.handle(Heard(beat), NOW)
    return made


def forwarded(actions: list[Any]) -> list[tuple[str, str]]:
    return [(action.waiting.request.id, action.replica) for action in actions if isinstance(action, Forward)]


class TestALoss:
    def test_lets_nothing_on_before_every_replica_has_put_back_what_it_runs(self):
        core = policy(make_beat("0", generation="a"), make_beat("1", generation="a"))
        core.handle(Generation("a"), NOW)
        request = make_request()
        assert len(forwarded(core.handle(Arrived(request, "1-1"), NOW))) == 1
        core.handle(Generation("b"), NOW)
        again = make_request()
        assert forwarded(core.handle(Arrived(again, "1-2"), NOW)) == []
        assert forwarded(core.handle(Heard(make_beat("0", generation="b")), NOW)) == []
        assert forwarded(core.handle(Heard(make_beat("1", generation="b")), NOW))[0][0] == again.id

    def test_holds_up_no_other_model(self):
        other = make_facts(model="other")
        core = policy(make_beat("0", generation="a"), make_beat("1", generation="b", facts=other))
        core.handle(Generation("b"), NOW)
        one, two = make_request(), make_request(model="other")
        assert forwarded(core.handle(Arrived(one, "1-1"), NOW)) == []
        assert forwarded(core.handle(Arrived(two, "1-2"), NOW)) == [(two.id, "1")]

    def test_waits_for_no_replica_that_was_given_up(self):
        core = policy(make_beat("0", generation="b"), make_beat("1", generation="a"))
        core.handle(Generation("b"), NOW)
        request = make_request()
        assert forwarded(core.handle(Arrived(request, "1-1"), NOW)) == []
        assert forwarded(core.handle(Gone("1"), NOW)) == [(request.id, "0")]

    def test_of_all_memory_is_waited_out_since_others_may_speak_yet(self):
        core = policy(make_beat("0", generation="b"))
        core.handle(Generation("b", quiet=True), NOW)
        request = make_request()
        assert forwarded(core.handle(Arrived(request, "1-1"), NOW)) == []
        assert core.wake_at == NOW + QUIET
        late = NOW + QUIET
        assert forwarded(core.handle(Heard(make_beat("0", generation="b")), late)) == [(request.id, "0")]

    def test_leaves_what_waits_in_its_order_in_new_entries(self):
        core = policy()
        requests = [make_request(arrival=NOW + number) for number in range(3)]
        for number, request in enumerate(requests):
            core.handle(Arrived(request, f"1-{number}"), NOW)
        entries = {request.id: f"2-{number}" for number, request in enumerate(reversed(requests))}
        core.handle(Restored(entries), NOW)
        assert [(w.request.id, w.entry) for w in core.line] == [(r.id, entries[r.id]) for r in requests]
        # It is read again by its reader: the same entry is no other request.
        assert core.handle(Arrived(requests[0], entries[requests[0].id]), NOW) == []
        assert len(core.line) == 3

    def test_under_a_hand_over_lets_the_request_wait_again(self):
        core = policy(make_beat("0"))
        request = make_request()
        (forward,) = core.handle(Arrived(request, "1-1"), NOW)
        assert core.replicas["0"].load == 10
        core.handle(Returned(forward.waiting, "0"), NOW)
        assert core.replicas["0"].load == 0
        assert [waiting.request.id for waiting in core.line] == [request.id]

    def test_under_a_hand_over_leaves_the_later_entry_where_there_is_one(self):
        core = policy(make_beat("0", credit=20))
        request = make_request()
        (forward,) = core.handle(Arrived(request, "1-1"), NOW)
        core.handle(Generation("", quiet=True), NOW)
        assert core.handle(Arrived(request, "1-2"), NOW) == []  # submitted again while it is handed over
        assert core.handle(Returned(forward.waiting, "0"), NOW) == [Drop("1-1")]
        assert [waiting.entry for waiting in core.line] == ["1-2"]
        assert forwarded(core.handle(Woken(), NOW + QUIET)) == [(request.id, "0")]


class TestAFullFleet:
    def test_asks_who_has_told_news_and_no_other(self, monkeypatch):
        core = policy(*(make_beat(str(name), uncomputed=5, credit=5) for name in range(50)))
        asked = []
        own = Replica.has_room

        def has_room(replica, tokens, seconds):
            asked.append(replica.beat.replica)
            return own(replica, tokens, seconds)

        monkeypatch.setattr(Replica, "has_room", has_room)
        request = make_request()
        core.handle(Arrived(request, "1-1"), NOW)
        assert len(asked) == 50
        asked.clear()
        for name in ("7", "8"):
            assert core.handle(Heard(make_beat(name, uncomputed=5, credit=5)), NOW) == []
        assert asked == ["7", "8"]
        # What else may make room is looked for everywhere: others' silence, ends, a word of the bus.
        asked.clear()
        core.handle(Woken(), NOW)
        assert len(asked) == 50
        asked.clear()
        for name in range(49):
            core.handle(Heard(make_beat(str(name), uncomputed=5, credit=5)), NOW + FRESH)
        asked.clear()
        core.handle(Heard(make_beat("0", uncomputed=5, credit=5)), NOW + FRESH + 0.1)
        assert len(asked) == 49
        assert forwarded(core.handle(Heard(make_beat("3")), NOW + FRESH + 0.2)) == [(request.id, "3")]


class TestWhatComesAgain:
    def test_is_not_refused_for_load(self):
        core = policy(make_beat("0", credit=0, uncomputed=5), max_waiting=1)
        core.handle(Arrived(make_request(), "1-1"), NOW)
        again = make_request(resumed=True)
        assert core.handle(Arrived(again, "1-2"), NOW) == []
        assert len(core.line) == 2

    def test_goes_where_the_same_bits_are_computed(self):
        facts = make_facts(fingerprint="other")
        core = policy(make_beat("0", facts=facts), make_beat("1"), make_beat("2", facts=facts))
        for number in range(3):
            request = make_request(fingerprint="f", resumed=True)
            assert forwarded(core.handle(Arrived(request, f"1-{number}"), NOW)) == [(request.id, "1")]
        core.handle(Gone("1"), NOW)
        request = make_request(fingerprint="f", resumed=True)
        assert forwarded(core.handle(Arrived(request, "1-9"), NOW))[0][1] in ("0", "2")

    def test_goes_nowhere_near_a_replica_that_is_gone(self):
        core = policy(make_beat("0"), make_beat("1", credit=1000))
        request = make_request(60)
        (before,) = forwarded(core.handle(Arrived(request, "1-1"), NOW))
        core.handle(Gone(before[1]), NOW)
        ((_, after),) = forwarded(core.handle(Arrived(request, "1-2"), NOW))
        assert {before[1], after} == {"0", "1"}


def test_a_new_replica_is_taken_to_be_as_fast_as_the_others():
    core = policy(make_beat("0", prefill_rate=500.0, uncomputed=20), make_beat("1", prefill_rate=0.0))
    request = make_request()
    assert forwarded(core.handle(Arrived(request, "1-1"), NOW)) == [(request.id, "1")]


class TestADeath:
    def test_is_suspected_of_the_silent_and_of_those_that_say_that_they_go(self):
        core = policy(make_beat("0"), make_beat("1"), make_beat("2", state="gone"))
        assert core.replicas.suspects(NOW) == {"2": True}
        core.handle(Heard(make_beat("0")), NOW + FRESH + 1)
        assert core.replicas.suspects(NOW + FRESH + 1) == {"1": False, "2": True}

    def test_leaves_heirs_that_are_ready_and_have_the_model(self):
        core = policy(make_beat("0"), make_beat("1", facts=make_facts(model="other")), make_beat("2"))
        assert core.replicas.heirs("0", NOW)
        assert not core.replicas.heirs("1", NOW)
        core.handle(Heard(make_beat("2", state="draining")), NOW)
        assert not core.replicas.heirs("0", NOW)

    def test_is_certain_after_the_patience_on_end(self):
        vigil = Vigil(patience=2.0)
        seen = [vigil.look({"0": False}, at * LOOK) for at in range(5)]
        assert seen == [[], [], [], [], ["0"]]
        assert vigil.look({}, 5 * LOOK) == []  # it took its lease again
        assert vigil.look({"0": False}, 6 * LOOK) == []

    def test_is_not_told_by_time_in_which_nobody_could_be_heard(self):
        vigil = Vigil(patience=2.0)
        assert vigil.look({"0": False}, 0.0) == []
        assert vigil.look({"0": False}, 100.0) == []

    def test_of_who_went_by_itself_is_certain_at_once(self):
        assert Vigil(patience=2.0).look({"0": True, "1": False}, 0.0) == ["0"]
