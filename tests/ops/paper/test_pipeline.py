"""The simulator's replica over the stages of a pipeline, all jobs there from the start."""

import pytest

from pillion.ops.paper import pipeline
from pillion.ops.paper.pipeline import Job
from pillion.ops.paper.sarathi import settings


def run(policy, jobs, stages=1, slots=4, budget=None, seconds=lambda work: 1.0):
    return pipeline.run(settings(policy, slots * stages, budget), seconds, jobs, stages=stages)


def test_one_stage_is_a_plain_replica():
    ran = run("request-level", [Job(100, 5)] * 8)
    assert ran.seconds == ran.bubbles.busy == len(ran.steps) == 10  # twice a prefill and four decodes
    assert ran.riding == 0 and ran.bubbles.seconds == [0.0, 0.0, 0.0]
    assert ran.bubbles.requests.count == ran.bubbles.requests.nothing == 8


def test_stages_run_side_by_side_and_no_job_is_lost():
    ran = run("request-level", [Job(100, 5)] * 8, stages=2)
    # Two parts, each a prefill and four decodes, but the last four streams are shared anew.
    assert len(ran.steps) == ran.bubbles.busy == 12
    assert ran.seconds == pytest.approx(6.5, abs=0.01)  # half a second to fill it
    assert ran.bubbles.requests.count == 8 and ran.median_wait < 0.01


def test_a_prefill_beside_decodes_makes_a_bubble_and_chunks_make_it_small():
    jobs = [Job(1000, 1 + 7 * (index % 5)) for index in range(40)]
    waits = {}
    for policy, budget in (("orca", None), ("sarathi", 64)):
        ran = run(policy, jobs, 4, budget=budget, seconds=lambda work: 0.1 + 0.001 * work.rows)
        waits[policy] = ran.bubbles.seconds[1] / ran.bubbles.busy
        assert ran.median_wait > 0 and ran.bubbles.requests.count == 40
    assert waits["orca"] > 3 * waits["sarathi"] > 0
