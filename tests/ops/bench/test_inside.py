"""What of a stack's CPU time was not computing."""

import os

import pytest

from pillion.ops.bench.inside import cpu_seconds, outside


@pytest.mark.parametrize(
    ("executor", "forward", "logits", "threads", "share"),
    [
        (6.0, 2.0, 0.5, 2, 0.5),  # 5 of 10 s at most were in kernels
        (4.0, 2.0, 0.5, 2, 0.5),  # no more than the executor used: 4 of 8 s
        (6.0, 9.0, 0.5, 2, 0.4),
    ],
)
def test_at_least_so_much_was_outside(
    executor: float, forward: float, logits: float, threads: int, share: float
):
    cpu = {"executor": executor, "gateway": 3.0, "valkey": 1.0}
    parts = {"prepare": 7.0, "forward": forward, "logits": logits}
    assert outside(cpu, parts, threads) == pytest.approx(share)


def test_without_any_nothing_was() -> None:
    assert outside({}, {}, 2) == 0


def test_the_one_that_started_all_counts_too() -> None:
    sum(range(10**6))
    assert set(cpu_seconds(os.getpid())) == {"up"} and cpu_seconds(os.getpid())["up"] > 0
