"""Cores over the stages of a pipeline."""

import pytest

from pillion.ops.paper.gpu import A100, GPT_3, Deployment
from pillion.ops.paper.pipeline import PREFILL_BESIDE_DECODE, Job, Pipeline
from pillion.ops.paper.sarathi import settings


def run(policy, jobs, stages=1, slots=4, budget=None, seconds=lambda work: 1.0):
    deployment = Deployment(GPT_3, A100, tp=8, stages=stages)
    return Pipeline(settings(policy, slots, budget), seconds, deployment=deployment).run(jobs)


def test_one_stage_is_a_plain_replica():
    ran = run("request-level", [Job(100, 5)] * 8)
    assert ran.seconds == ran.busy == len(ran.steps) == 10  # twice a prefill and four decodes
    assert ran.riding == 0 and not ran.bubbles and ran.waits == {str(index): 0.0 for index in range(8)}


def test_stages_run_side_by_side_and_no_job_is_lost():
    ran = run("request-level", [Job(100, 5)] * 8, stages=2)
    assert len(ran.steps) == 10 and ran.busy == 10
    assert ran.seconds == pytest.approx(5.5, abs=0.01)  # half a second to fill it
    assert len(ran.waits) == 8


def test_a_prefill_beside_decodes_makes_a_bubble_and_chunks_make_it_small():
    jobs = [Job(1000, 1 + 7 * (index % 5)) for index in range(40)]
    waits = {}
    for policy, budget in (("orca", None), ("sarathi", 64)):
        ran = run(policy, jobs, 4, budget=budget, seconds=lambda work: 0.1 + 0.001 * work.rows)
        waits[policy] = ran.bubbles[PREFILL_BESIDE_DECODE] / ran.busy
        assert ran.median_wait > 0
    assert waits["orca"] > 3 * waits["sarathi"] > 0
