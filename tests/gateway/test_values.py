"""Checks of values: of long arrays no item is looked at by itself."""

import pytest

from pillion.gateway.protocol import values
from pillion.gateway.protocol.errors import ApiError


class Counted(str):
    """A field's name that counts how often an item's is made from it."""

    made = 0

    def __format__(self, spec: str) -> str:
        Counted.made += 1
        return str(self)


@pytest.mark.parametrize(
    "value",
    [
        [], [0], [5] * 1000,
        [9, 10], [5] * 999 + [10], [1] * 1001, [-1], [True], [5, 1.0], [None], [[1]], ["1"],
        [10**30], "1", {}, None,
    ],
)  # fmt: skip
def test_long_arrays_of_integers_are_judged_as_short_ones_are(value):
    def judged(check, name):
        try:
            return check(name, value)
        except ApiError as error:
            return error.param, error.message, error.code

    Counted.made = 0
    found = judged(values.integers(0, 9, 1000), Counted("tokens"))
    assert Counted.made <= 2
    assert found == judged(values.listed(values.integer(0, 9), 1000), "tokens")
