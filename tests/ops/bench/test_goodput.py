"""Latency from the intended time, goodput over what was sent."""

import random
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from pillion.ops.bench.client import Timeline
from pillion.ops.bench.goodput import plot, poisson_jobs
from pillion.ops.bench.sending import seen
from pillion.ops.bench.server import Job
from pillion.ops.traces import Between, Shape


def line(*tokens: float, sent: float = 100.0, **changes: Any) -> Timeline:
    values = {"finish": "length", "status": 200}
    return Timeline(sent, list(tokens), **values | changes)


JOB = Job([1, 2], 3, at=5.0)


def test_latency_counts_from_the_intended_time():
    late, gaps = seen(JOB, 99.0, line(101.0, 101.1, 101.4, cached_tokens=1))
    assert (late.at, late.lag, late.result, late.prompt, late.output) == (5.0, 1.0, "finished", 2, 3)
    assert (late.ttft, late.e2e, late.cached) == (pytest.approx(2.0), pytest.approx(2.4), 1)
    assert gaps == pytest.approx([0.1, 0.3])


def test_the_plot_is_an_svg_with_its_curves():
    random_ = random.Random(1)
    points = [
        {"times_capacity": times, "finished_per_s": 2 + random_.random(), "goodput_per_s": 2.0}
        for times in (0.5, 1, 2, 3)
    ]
    picture = plot({"points": points, "capacity": 2.5, "options": {"ttft": 3.0, "tbt": 0.2}})
    root = ET.fromstring(picture)
    curves = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert sorted(len(curve.attrib["points"].split()) for curve in curves) == [2, 4, 4]
    assert {"goodput", "finished", "offered"} <= {each.text for each in root.iter() if each.text}


def test_jobs_are_due_at_random_and_have_the_shape_s_lengths():
    jobs = poisson_jobs(random.Random(1), 20.0, 30.0, Shape(Between(5, 5), Between(2, 3)))
    assert len(jobs) == pytest.approx(600, rel=0.15) and 0 < jobs[0].at < jobs[-1].at < 30.0
    assert {len(job.prompt) for job in jobs} == {5} and {job.output for job in jobs} == {2, 3}
    assert len({tuple(job.prompt) for job in jobs}) == len(jobs)
