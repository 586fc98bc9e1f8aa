"""Latency from the intended time, goodput over what was sent."""

import random
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from pillion.ops.bench.client import Timeline
from pillion.ops.bench.goodput import Outcome, outcome, percentile, plot, poisson_jobs, summary
from pillion.ops.bench.server import Job
from pillion.ops.traces import Between, Shape


def line(*tokens: float, sent: float = 100.0, **changes: Any) -> Timeline:
    values = {"finish": "length", "status": 200}
    return Timeline(sent, list(tokens), **values | changes)


def test_latency_counts_from_the_intended_time():
    late = outcome(Job([1, 2], 3, at=5.0), 99.0, line(101.0, 101.1, 101.4))
    assert (late.lag, late.ttft, late.result, late.prompt, late.output) == (1.0, 2.0, "finished", 2, 3)
    assert late.gap_p99 == late.gap_worst == pytest.approx(0.3)
    assert late.good(2.0, 0.31) and not late.good(1.9, 0.31) and not late.good(2.0, 0.29)


def test_what_did_not_end_well_is_not_good():
    job = Job([1], 3)
    refused = outcome(job, 100.0, line(status=429, finish=None, error="429", code="predicted_ttft"))
    broken = outcome(job, 100.0, line(100.1, finish=None, error="gone"))
    away = outcome(job, 100.0, line(status=0, finish=None, error="ConnectionError"))
    assert [one.result for one in (refused, broken, away)] == ["predicted_ttft", "failed", "failed"]
    assert not any(one.good(9.0, 9.0) for one in (refused, broken, away))
    one_token = outcome(job, 100.0, line(100.1))
    assert one_token.good(0.2, 0.1)


def seen(result: str = "finished", ttft: float | None = 1.0, gap: float | None = 0.1) -> Outcome:
    return Outcome(0.0, 0.0, 10, 5, result, ttft, gap, gap)


def test_goodput_is_over_what_was_sent():
    all_ = [
        seen(),
        seen(),
        seen(ttft=5.0),
        seen(gap=0.5),
        seen("queue_full", None, None),
        seen("failed", None),
    ]
    point = summary(2.0, 0.6, 10.0, all_, 3.0, 0.2)
    assert (point["sent"], point["good"], point["goodput"], point["finished"]) == (6, 2, 0.2, 0.4)
    assert point["results"] == {"failed": 1, "finished": 4, "queue_full": 1}
    assert (point["missed_ttft"], point["missed_tbt"]) == (1, 1)


def test_the_plot_is_an_svg_with_its_curves():
    random_ = random.Random(1)
    points = [
        {"times_capacity": times, "finished": 2 + random_.random(), "goodput": 2.0}
        for times in (0.5, 1, 2, 3)
    ]
    picture = plot({"points": points, "capacity": 2.5, "options": {"ttft": 3.0, "tbt": 0.2}})
    root = ET.fromstring(picture)
    curves = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert sorted(len(curve.attrib["points"].split()) for curve in curves) == [2, 4, 4]
    assert {"goodput", "finished", "offered"} <= {each.text for each in root.iter() if each.text}


def test_percentile_is_the_nearest_rank():
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [percentile(values, share) for share in (0.2, 0.21, 0.5, 0.99, 1.0)] == [1, 2, 3, 5, 5]


def test_jobs_are_due_at_random_and_have_the_shape_s_lengths():
    jobs = poisson_jobs(random.Random(1), 20.0, 30.0, Shape(Between(5, 5), Between(2, 3)))
    assert len(jobs) == pytest.approx(600, rel=0.15) and 0 < jobs[0].at < jobs[-1].at < 30.0
    assert {len(job.prompt) for job in jobs} == {5} and {job.output for job in jobs} == {2, 3}
    assert len({tuple(job.prompt) for job in jobs}) == len(jobs)
