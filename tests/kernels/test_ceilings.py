"""The machine's ceilings come as figures of the machine, not of one call."""

import pytest

from pillion.kernels import ceilings
from pillion.ops.bench.ceilings import NoCeilings, ceilings_of


def test_they_are_measured_in_a_process_of_their_own() -> None:
    found = ceilings_of(1, seconds=0.01, buffer=1 << 24)
    # More than any kettle, and less than any machine to come.
    assert 1e8 < found.bytes_per_s < 1e13
    assert 1e9 < found.flops_per_s < 1e15 and 1e8 < found.int8_flops_per_s < 1e16


def test_the_first_call_does_not_count() -> None:
    calls = []
    assert 0 < ceilings._best(lambda: calls.append(1), 0.0) < 1
    assert len(calls) == 2
    before = len(calls)
    ceilings._best(lambda: calls.append(1), 0.001)
    assert len(calls) > before + 2


def test_a_machine_that_cannot_says_why() -> None:
    with pytest.raises(NoCeilings, match="cannot measure the machine's ceilings: "):
        ceilings_of(-1)
