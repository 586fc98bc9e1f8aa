"""What is folded into a record, and what goes on from one."""

import pytest

from pillion.bus.ledger import HistoryDiffers, Ledger
from pillion.contracts.entries import ChoiceRecord, Record, Request, Sampling, TokenLogprob, Tokens

LOGPROB = TokenLogprob(-1.0, 1)


def request(**fields) -> Request:
    return Request("r", "g", "m", ((1, 2),), Sampling(seed=1), 0.0, **{"n": 2} | fields)


def test_a_parked_request_keeps_which_choices_can_go_on():
    ledger = Ledger()
    ledger.open(request(n=3), "1-0", "0-0")
    ledger.add([Tokens("r", 0, 0, (5, 6), cached=4), Tokens("r", 1, 0, (7,), "stop", 7)])
    opened, record = ledger.close("r", parked=True)
    assert opened.entry == "1-0"
    assert record.choices == (
        ChoiceRecord((5, 6), "", cached=4), ChoiceRecord((7,), "stop", 7), ChoiceRecord((), ""),
    )  # fmt: skip
    assert not record.finished


def test_the_next_life_goes_on_from_the_record_and_folds_to_the_whole():
    ledger = Ledger()
    parked = Record("r", (ChoiceRecord((5, 6), "", cached=4), ChoiceRecord((7,), "stop", 7)))
    opened = ledger.open(request(life=1), "9-0", "0-0", parked)
    assert opened.done() == {0: (5, 6), 1: (7,)}
    assert opened.ended() == {1}
    # The journal may still have items of the earlier life: they come again, in portions of their own.
    ledger.add(
        [Tokens("r", 0, 0, (5,)), Tokens("r", 1, 0, (7,), "stop", 7, 2), Tokens("r", 0, 1, (6, 8), cached=2)]
    )
    ledger.add([Tokens("r", 0, 3, (9,), "length")])
    _, record = ledger.close("r")
    assert record.choices == (ChoiceRecord((5, 6, 8, 9), "length", cached=4), ChoiceRecord((7,), "stop", 7))
    assert record.finished


def test_logprobs_go_on_too():
    ledger = Ledger()
    ledger.open(request(n=1), "9-0", "0-0", Record("r", (ChoiceRecord((5,), "", logprobs=(LOGPROB,)),)))
    ledger.add([Tokens("r", 0, 0, (5, 6), logprobs=(LOGPROB, LOGPROB))])
    assert ledger.close("r", parked=True)[1].choices[0].logprobs == (LOGPROB, LOGPROB)


def test_what_is_told_of_the_prompt_is_kept_with_the_first_token():
    """Through a life's end, a repetition, and what is put back from memory."""
    ledger = Ledger()
    ledger.open(request(n=1), "9-0", "0-0")
    ledger.add([Tokens("r", 0, 0, (5,), prompt_logprobs=b"told"), Tokens("r", 0, 1, (6,))])
    (parked,) = ledger.close("r", parked=True)[1].choices
    assert parked == ChoiceRecord((5, 6), "", prompt_logprobs=b"told")
    opened = ledger.open(request(n=1, life=1), "9-1", "0-0", Record("r", (parked,)))
    ledger.add([Tokens("r", 0, 0, (5,), prompt_logprobs=b"told"), Tokens("r", 0, 2, (7,), "length")])
    assert opened.items()[0].prompt_logprobs == b"told"
    assert ledger.close("r")[1].choices[0].prompt_logprobs == b"told"


def test_a_choice_that_a_stop_string_ended_runs_no_more():
    ledger = Ledger()
    opened = ledger.open(request(ended=(1,)), "9-0", "0-0", Record("r", (ChoiceRecord((5,), ""),) * 2))
    assert opened.ended() == {1}
    assert ledger.close("r", parked=True)[1].choices == (
        ChoiceRecord((5,), ""), ChoiceRecord((5,), "cancelled"),
    )  # fmt: skip


@pytest.mark.parametrize(
    "item",
    [Tokens("r", 0, 3, (9,)), Tokens("r", 0, 0, (6,)), Tokens("r", 0, 1, (7, 8)), Tokens("r", 1, 1, (8,))],
)
def test_two_histories_are_never_joined(item):
    ledger = Ledger()
    ledger.open(request(), "9-0", "0-0", Record("r", (ChoiceRecord((5, 6), ""), ChoiceRecord((7,), "stop"))))
    with pytest.raises(HistoryDiffers):
        ledger.add([item])
