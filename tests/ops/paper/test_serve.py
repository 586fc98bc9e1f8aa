"""The budget follows from the target: what streams feel keeps it, where the cost model is right."""

import pytest

from pillion.ops.paper.gpu import cost_model
from pillion.ops.paper.serve import MISTRAL, PAPERS, Way, serve

FEW = 40


def served(target, rate, known):
    return serve(MISTRAL, Way("stall-free", target=target), PAPERS, rate, FEW, known)


@pytest.mark.parametrize(("target", "rate"), [(0.1, 0.6), (0.5, 1.5)])
def test_no_gap_is_over_the_target_where_steps_take_what_the_model_says(target, rate):
    """Long prompts, as many as can be served: steps are full, and the target is used."""
    tally = served(target, rate, cost_model(MISTRAL))
    assert tally.summary(1.0)["finished"] == FEW
    assert 0.9 * target < tally.tbt.quantile(0.95) < tally.tbt.most <= target


def test_a_learned_model_keeps_the_p99():
    tally = served(0.5, 1.5, None)
    assert 0.9 * 0.5 < tally.tbt.quantile(0.95) < tally.tbt.quantile(0.99) <= 0.5
    assert tally.tbt.most > 0.5  # it cannot be exact: its model has no waves of tiles
