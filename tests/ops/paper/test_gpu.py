"""Step times from data sheets, held against what the papers measured."""

import random

import pytest

from pillion.ops.paper.gpu import A100, A6000, GPT_3, LLAMA_13B, TILE, Deployment, cost_model
from pillion.steptime import Work

SMALL = Deployment(LLAMA_13B, A6000)


def test_the_papers_iteration_within_a_seventh():
    assert SMALL.linear(1024) == pytest.approx(0.2248, rel=0.14)
    assert SMALL.linear(4) == pytest.approx(0.04428, rel=0.14)
    assert SMALL.attention(4 * 1024, 0) == pytest.approx(0.00568, rel=0.14)


def test_a_row_over_a_tile_costs_a_tile_and_rows_within_it_nothing():
    assert SMALL.linear(TILE + 1) == SMALL.linear(2 * TILE)
    assert SMALL.linear(2 * TILE + 1) > 1.3 * SMALL.linear(2 * TILE)
    assert SMALL.linear(1) == SMALL.linear(TILE) > LLAMA_13B.weight_bytes / A6000.read


def test_b_by_the_papers_formula():
    assert Deployment(GPT_3, A100, tp=8).batch(4096) == 11
    assert Deployment(GPT_3, A100, tp=8, stages=8).batch(4096) == 27


def test_each_part_of_a_steps_work_costs():
    base = Work(rows=128, decodes=8, context=8000, chunks=1, pairs=7200.0, sampled=9)
    costlier = (
        Work(256, 8, 8000, 1, 7200.0, 9),
        Work(128, 8, 9000, 1, 7200.0, 9),
        Work(128, 8, 8000, 1, 9e6, 9),
    )
    assert all(SMALL.seconds(work) > SMALL.seconds(base) for work in costlier)
    assert Deployment(LLAMA_13B, A100, tp=2).seconds(base) < Deployment(LLAMA_13B, A100).seconds(base)


def test_the_cost_model_is_exact():
    draw = random.Random(1)
    for deployment in (SMALL, Deployment(LLAMA_13B, A100, tp=2), Deployment(LLAMA_13B, A100, stages=2)):
        model = cost_model(deployment)
        for rows in (1, TILE, TILE + 1, 2 * TILE, *(draw.randrange(1, 8192) for _ in range(100))):
            decodes = draw.randrange(min(rows, 200))
            work = Work(rows, decodes, draw.randrange(10**6), 1, draw.uniform(0, 1e8), draw.randrange(201))
            assert model.seconds(work) == pytest.approx(deployment.latency(work), rel=1e-9)
