"""Event ids."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillion.gateway import position
from pillion.gateway.protocol.errors import ApiError


@given(st.lists(st.integers(0, 9) | st.integers(0, 10**6), min_size=1, max_size=40))
def test_an_id_says_where_each_choice_stands(counts: list[int]) -> None:
    text = position.encode("r", counts)
    assert position.decode("r", text, len(counts)) == (*counts, 0)
    if len(counts) > 1:  # the last one may be the events behind all choices
        assert position.decode("r", text, len(counts) - 1) == tuple(counts)


def test_choices_in_step_take_no_more_room_than_one() -> None:
    assert position.encode("r", [57] * 128).startswith("57x128-")
    assert position.encode("r", [58] * 3 + [57] * 125 + [1]).startswith("58x3.57x125.1-")


@pytest.mark.parametrize(
    "text", ["", "a", "-1", "1.", ".1", "1.2.3", "1x4", "1x0", "1.1x3", "1x99999", "1x", "٣", "1 ", "9" * 11,
             "1." * 5000 + "1", "1" + ".1" * 5000],
)  # fmt: skip
def test_what_is_no_id_of_the_stream_is_refused(text: str) -> None:
    for whole in (text, position.sealed("r", text)):
        with pytest.raises(ApiError) as error:
            position.decode("r", whole, 1 if text != "1.1x3" else 2)
        assert (error.value.status, error.value.param) == (400, "Last-Event-ID")


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_an_id_that_the_stream_did_not_bring_is_refused(sent: int, claimed: int) -> None:
    numbers, _, seal = position.encode("r", [sent]).partition("-")
    false = [f"{claimed}-{seal}"] if claimed != sent else []
    for text in (numbers, f"{numbers}-", f"0{numbers}-{seal}", position.encode("other", [sent]), *false):
        with pytest.raises(ApiError):
            position.decode("r", text, 1)
