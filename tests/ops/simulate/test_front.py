"""Replicas behind the real admission: its routing, its refusals, heartbeats as often as real ones."""

from collections import Counter
from itertools import pairwise

import pytest

from pillion.ops.simulate import front
from pillion.ops.traces import Arrival, Between, Shape
from pillion.scheduler.beat import LONGEST, SHORTEST
from pillion.scheduler.messages import Submitted


def by_replica(cores) -> list[int]:
    return [sum(isinstance(event, Submitted) for event, _ in core.events) for core in cores]


def test_one_replica_with_admission_ends_what_it_ends_without(sim):
    alone = sim.simulate(sim.asked(), sim.some(60))
    result = sim.simulate(sim.asked(admission={"credit_seconds": 100.0}, with_admission=True), sim.some(60))
    assert result.tally.results == alone.tally.results == {"finished": 60}
    assert result.tally.e2e.quantile(0.5) == pytest.approx(alone.tally.e2e.quantile(0.5), rel=0.05)


def test_admission_holds_what_the_replica_has_no_credit_for(sim):
    shape = Shape(Between(200, 200), Between(2, 2))
    held = sim.asked(admission={"credit_seconds": 0.2}, with_admission=True)
    result = sim.simulate(held, sim.some(100, rate=400.0, shape=shape))
    steps = result.watch.summary()
    assert result.tally.results == {"finished": 100} and steps["most_held"] > 10


def test_a_full_line_refuses_and_the_refused_are_counted(sim):
    full = sim.asked(admission={"max_waiting": 5, "credit_seconds": 0.05}, with_admission=True)
    told = sim.simulate(full, sim.some(100, rate=1000.0)).tally.summary(1.0)
    assert told["results"]["queue_full"] == told["rejected"] > 20
    assert told["finished"] + told["rejected"] == told["sent"] == 100


def test_a_ttft_target_refuses_early_and_keeps_it_for_the_rest(sim):
    shape = Shape(Between(300, 300), Between(20, 40))
    admission = {"slo_ttft": 0.5}
    asked = sim.asked(admission=admission, with_admission=True)
    told = sim.simulate(asked, sim.some(300, rate=60.0, shape=shape)).tally.summary(1.0)
    free = sim.simulate(sim.asked(with_admission=True), sim.some(300, rate=60.0, shape=shape)).tally.summary(
        1.0
    )
    assert told["results"]["predicted_ttft"] > 50 and told["ttft_s"]["p99"] < 1.0 < free["ttft_s"]["p99"]


def test_tenants_get_even_shares(sim, cores):
    arrivals = (Arrival(index / 10_000, 100, 10, tenant="ab"[index >= 30]) for index in range(40))
    sim.simulate(sim.asked(admission={"credit_seconds": 0.1}, with_admission=True), arrivals)
    order = [event.request.tenant for event, _ in cores[0].events if isinstance(event, Submitted)]
    assert Counter(order) == {"a": 30, "b": 10}
    assert order[:25].count("b") == 10  # came last, and gets every other turn


def test_a_prefix_s_group_goes_where_it_was(sim, cores):
    shape = Shape(Between(200, 260), Between(2, 6))
    groups = (
        Arrival(one.at, one.prompt, one.output, group=index % 4, prefix=192)
        for index, one in enumerate(sim.some(120, rate=40.0, shape=shape))
    )
    result = sim.simulate(sim.asked(replicas=4), groups)
    told = result.summary()
    assert told["counters"]["hit_share"] > 0.6  # 192 of 230, were no replica's first one a miss
    assert sum(by_replica(cores)) == 120


def test_a_thousand_replicas_share_a_load(sim, cores):
    shape = Shape(Between(30, 60), Between(4, 8))
    result = sim.simulate(sim.asked(replicas=1000, blocks=20), sim.some(150, rate=3000.0, shape=shape))
    assert result.tally.results == {"finished": 150}
    counts = by_replica(cores)
    assert len(counts) == 1000 and sum(counts) == 150 and max(counts) < 5 and sum(map(bool, counts)) > 75
    assert result.tally.ttft.quantile(0.99) < 0.2


def test_heartbeats_come_on_change_and_no_more_often_than_real_ones(sim, monkeypatch):
    beats: dict[str, list[float]] = {}
    heard = front.Admitted.heard

    def listen(self, beat):
        beats.setdefault(beat.replica, []).append(self._clock.now)
        heard(self, beat)

    monkeypatch.setattr(front.Admitted, "heard", listen)
    arrivals = [Arrival(5.0 + index / 50, 64, 30) for index in range(40)]
    sim.simulate(sim.asked(replicas=2), iter(arrivals))
    gaps = [b - a for times in beats.values() for a, b in pairwise(times)]
    assert min(gaps) == pytest.approx(SHORTEST) and max(gaps) == pytest.approx(LONGEST)
    assert sum(gap < 2 * SHORTEST for gap in gaps) > 10
