"""Stop strings, whatever the portions of the text."""

import tracemalloc
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from pillion.gateway.stops import Stops

LETTERS = st.text("ab€", max_size=30)
STOPS = st.lists(st.text("ab€", min_size=1, max_size=4), min_size=1, max_size=3)


def run(parts: list[str], stops: list[str], include: bool = False) -> tuple[str, str | None]:
    matcher = Stops(stops, include)
    text = ""
    for part in parts:
        text += matcher.push(part)
    return text + matcher.flush(), matcher.matched


def described(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The description: the first character at which a stop is whole ends the text; of several the longest."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


@given(LETTERS, STOPS, st.lists(st.integers(0, 30), max_size=8), st.booleans())
@example("xab", ["abc", "ab"], [1, 2], False)
@example("xbab", ["bab", "ab"], [], False)
@example("abcd", ["abcd", "bc"], [], False)
@example("abab", ["ba", "ab"], [1], True)
def test_any_portions_give_what_the_description_says(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    borders = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    parts = [text[a:b] for a, b in pairwise(borders)]
    assert run(parts, stops, include) == described(text, stops, include)


@given(LETTERS, STOPS)
def test_no_more_is_held_back_than_could_become_a_stop(text: str, stops: list[str]) -> None:
    matcher, out = Stops(stops), ""
    for at, character in enumerate(text, 1):
        out += matcher.push(character)
        if matcher.matched is not None:
            return
        held = text[len(out) : at]
        assert out + held == text[:at]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


def test_nothing_follows_a_match() -> None:
    matcher = Stops(["b"])
    assert matcher.push("abc") == "a" and matcher.push("xyz") == "" and matcher.flush() == ""


def test_a_string_that_begins_unarmed_may_end_armed() -> None:
    matcher = Stops(["END"])
    assert matcher.push("END E", armed=False) == "END "
    assert matcher.push("ND x") == "" and matcher.matched == "END"


def test_a_choice_takes_no_memory_for_its_long_strings() -> None:
    """A request has 128 choices, and each one of its own."""
    stops = [f"{number:04}" * 256 for number in range(16)]
    tracemalloc.start()
    try:
        kept = [Stops(stops) for _ in range(10)]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20  # what a choice begins with: 16 KiB of strings
    finally:
        tracemalloc.stop()
    assert [matcher.push("x" + stops[5][:1000] + "-0") for matcher in kept] == [
        "x" + stops[5][:1000] + "-"
    ] * 10
    assert {matcher.flush() for matcher in kept} == {"0"}
