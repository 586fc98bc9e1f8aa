"""When a first token would come, and how far such a word is trusted."""

import random

import pytest

from pillion.admission.line import Ahead
from pillion.admission.predict import Correction, Forecast, Server, forecast
from pillion.admission.prefixes import Prefixes
from tests.admission.conftest import make_facts, make_request


def server(**changes: float) -> Server:
    values = {"rate": 100.0, "load": 0, "seats": 0, "held": 0, "step_seconds": 0.0, "idle_rate": 200.0}
    return Server(**values | changes)  # type: ignore[arg-type]


class TestForecast:
    def test_is_what_goes_before_and_the_own_prompt_over_the_rate(self):
        seen = forecast(Ahead(150, 3), 50, [server(load=50)], 10.0)
        assert seen == Forecast(wait=2.0, own=0.5, alone=0.25)
        assert seen.ttft == 2.5

    def test_replicas_share_what_waits_but_not_one_prompt(self):
        assert forecast(Ahead(100), 100, [server(load=100), server(rate=300.0)], 10.0) == Forecast(
            0.5, 1 / 3, 0.5
        )

    def test_nothing_is_known_without_a_rate(self):
        assert forecast(Ahead(), 50, [], 10.0) is None
        assert forecast(Ahead(), 50, [server(rate=0.0)], 10.0) is None

    def test_a_seat_is_waited_for_where_all_are_taken(self):
        full = server(seats=10, held=12, step_seconds=0.5)
        # 12 have or want one, 2 go before, and it needs one: 5 must leave, at two a second.
        assert forecast(Ahead(10, 2), 50, [full], 10.0) == Forecast(2.5, 0.5, 0.25)
        assert forecast(Ahead(10, 2), 50, [full, server(seats=10, step_seconds=0.5)], 10.0).wait == 10 / 200
        assert forecast(Ahead(10, 2), 50, [server(seats=10, held=12)], 10.0).wait == 0.1  # nothing to tell by


class TestExcess:
    def test_is_what_the_corrected_forecast_has_over_the_target(self):
        seen = Forecast(wait=3.0, own=1.0, alone=0.5)
        assert seen.excess(4.0) == 0
        assert seen.excess(3.5) == 0.5
        assert seen.excess(4.0, correction=1.5) == 2.0

    def test_is_none_for_who_waits_for_nobody(self):
        assert Forecast(wait=0.0, own=50.0, alone=1.0).excess(0.1, 3.0) == 0

    def test_a_long_prompt_is_measured_by_twice_what_it_takes_alone(self):
        assert Forecast(wait=5.0, own=10.0, alone=8.0).excess(2.0) == 0
        assert Forecast(wait=7.0, own=10.0, alone=8.0).excess(2.0) == 1.0


class TestCorrection:
    @pytest.mark.parametrize("bias", [0.5, 1.0, 1.6])
    def test_makes_nine_in_ten_come_true(self, bias: float):
        random_, correction = random.Random(1), Correction()
        outcomes = [bias * random_.lognormvariate(0, 0.2) for _ in range(3000)]
        kept = 0
        for count, came in enumerate(outcomes):
            kept += count >= 1000 and came <= correction.factor
            correction.learn(1.0, came)
        assert kept / 2000 == pytest.approx(0.9, abs=0.03) or (bias == 0.5 and correction.factor == 1.0)

    def test_stays_within_bounds(self):
        correction = Correction()
        for _ in range(100):
            correction.learn(1.0, 1000.0)
        assert correction.factor == Correction.MOST
        for _ in range(1000):
            correction.learn(1.0, 0.001)
        assert correction.factor == 1.0


class TestPrefixes:
    def test_what_went_to_a_replica_is_held_there_up_to_the_first_difference(self):
        known, facts = Prefixes(), make_facts()

        def held(prompt, replica, **fields):
            return len(prompt) - known.look(make_request(prompt, **fields), facts.block_size).at(replica)

        prompt = tuple(range(100))
        known.note(make_request(prompt), facts, "0")
        assert held(prompt, "0") == 96 and held(prompt, "1") == 0
        assert held((*prompt[:40], 7, *prompt[41:]), "0") == 32
        assert held(prompt, "0", cache_salt="s") == 0
        assert held(prompt[:96], "0") == 95  # the last is always computed
        assert held(prompt[:9], "0") == 0
        # What went on to another is held there, but not what goes before it.
        known.note(make_request(prompt[:48]), facts, "1")
        assert held(prompt, "1") == 48 and held(prompt, "0") == 0

    def test_choices_share_their_prompt(self):
        known, facts = Prefixes(), make_facts()
        one = make_request(tuple(range(100)), n=3)
        assert known.look(one, facts.block_size).at("0") == 100 + 2 * 4
        known.note(one, facts, "0")
        assert known.look(one, facts.block_size).at("0") == 3 * 4

    def test_replicas_with_blocks_of_other_sizes_hold_other_prefixes(self):
        known, facts, small = Prefixes(), make_facts(), make_facts(block_size=4)
        one = make_request(tuple(range(23)))
        known.note(one, facts, "0")
        known.note(one, small, "1")
        sizes = {"0": facts.block_size, "1": small.block_size}
        assert [known.look(one, size).at(name) for name, size in sizes.items()] == [23 - 16, 23 - 20]

    def test_a_later_replica_is_the_one_that_is_known(self):
        known, facts = Prefixes(), make_facts()
        one = make_request(tuple(range(64)))
        for replica in "01":
            known.note(one, facts, replica)
        look = known.look(one, facts.block_size)
        assert [look.at("0"), look.at("1")] == [64, 1]
