"""Many log-probabilities as bytes."""

import pytest

from pillion.contracts.entries import TokenLogprob
from pillion.contracts.packed import pack, unpack

TWO = [
    TokenLogprob(-0.5, 1, ((7, -0.5), (49151, -1.25))),
    TokenLogprob(float("-inf"), 49152, ((0, 0.0), (1, float("-inf")))),
]


def test_what_is_packed_comes_back_and_parts_may_be_joined():
    assert unpack(pack(TWO, 2), 2) == TWO
    assert unpack(pack(TWO[:1], 2) + pack(TWO[1:], 2), 2) == TWO
    assert len(pack(TWO, 2)) == 2 * 3 * 8 and unpack(b"", 2) == []
    assert unpack(pack([TokenLogprob(-0.5, 3)], 0), 0) == [TokenLogprob(-0.5, 3)]


def test_a_vocabulary_may_be_smaller_than_what_is_asked_for():
    assert unpack(pack(TWO, 20), 20) == TWO


def test_what_was_cut_off_is_refused():
    with pytest.raises(ValueError, match="47 bytes are no tokens of 24 each"):
        unpack(pack(TWO, 2)[:-1], 2)
