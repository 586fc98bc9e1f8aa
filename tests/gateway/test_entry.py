"""What depends on the model: room for prompt and output, and what is cut to make it."""

from typing import Any

import pytest

from pillion.gateway.protocol import forms
from pillion.gateway.protocol.entry import (
    MOST_FORBIDDEN,
    MOST_SCORED,
    MOST_STREAMED,
    Envelope,
    Limits,
    cut,
    entry,
)
from pillion.gateway.protocol.errors import ApiError
from pillion.modelfiles import SamplingDefaults

LIMITS = Limits(max_model_len=10, vocab_size=100, max_choices=4, end_tokens=(2, 3))
ENVELOPE = Envelope(id="r", gateway="g", model="m", arrival=0.0, deadline=1.0, seed=1)


def prompts(prompt: Any, **asked: Any) -> tuple[tuple[int, ...], ...]:
    """As they are run."""
    wanted = forms.completion({"prompt": prompt, "max_tokens": 2} | asked)
    listed = prompt if isinstance(prompt[0], list) else [prompt]
    shorter = cut(wanted, tuple(map(tuple, listed)), LIMITS)
    return entry(wanted, shorter, LIMITS, SamplingDefaults(), ENVELOPE).prompts


def refusal(prompt: Any, **asked: Any) -> ApiError:
    with pytest.raises(ApiError) as error:
        prompts(prompt, **asked)
    assert error.value.status == 400
    return error.value


LONG = list(range(1, 21))


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ({"truncate_prompt_tokens": 3}, LONG[-3:]),
        ({"truncate_prompt_tokens": 3, "truncation_side": "left"}, LONG[-3:]),
        ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, LONG[:3]),
        ({"truncate_prompt_tokens": -1}, LONG[-8:]),
        ({"truncate_prompt_tokens": -1, "max_tokens": 9}, LONG[-1:]),
        ({"truncate_prompt_tokens": 8}, LONG[-8:]),
    ],
)
def test_a_prompt_is_cut_to_what_is_wanted(asked: dict[str, Any], kept: list[int]) -> None:
    assert prompts(LONG, **asked) == (tuple(kept),)
    assert prompts([LONG, [5]], **asked) == (tuple(kept), (5,))  # each for itself; a short one is whole


def test_no_more_can_be_kept_than_leaves_room_for_the_answer() -> None:
    error = refusal(LONG, truncate_prompt_tokens=9)
    assert (error.param, error.code) == ("truncate_prompt_tokens", "context_length_exceeded")
    assert "at most 8" in error.message
    assert refusal(LONG, truncate_prompt_tokens=0).param == "truncate_prompt_tokens"
    # Nothing could be kept: it is the output that is too long.
    assert refusal([1], truncate_prompt_tokens=-1, max_tokens=10).param == "max_tokens"


def test_an_overflow_tells_the_prompt_s_length_the_limit_and_max_tokens() -> None:
    for prompt, max_tokens, param in ((LONG, 3, "prompt"), (LONG[:9], 7, "max_tokens")):
        error = refusal(prompt, max_tokens=max_tokens)
        assert (error.param, error.code) == (param, "context_length_exceeded")
        for number in (10, len(prompt), max_tokens):
            assert str(number) in error.message
        assert "max_tokens" in error.message


def test_a_prompt_may_fill_the_context_where_nothing_is_wanted_of_it() -> None:
    for more in ({}, {"prompt_logprobs": 1}, {"logprobs": 1}, {"truncate_prompt_tokens": 10}):
        assert prompts(LONG[:10], max_tokens=0, echo=True, **more) == (tuple(LONG[:10]),)
    assert prompts(LONG, max_tokens=0, echo=True, truncate_prompt_tokens=-1) == (tuple(LONG[-10:]),)
    error = refusal(LONG[:11], max_tokens=0, echo=True)
    assert (error.param, error.code) == ("prompt", "context_length_exceeded")
    assert error.message.endswith("; the prompt has 11. Shorten it, or send truncate_prompt_tokens.")
    assert refusal(LONG[:10], max_tokens=1, echo=True).message.count("asks for 1 more") == 1


def test_what_would_help_is_told() -> None:
    """Neither a shorter prompt nor a cut one does where the answer alone is too long."""
    for prompt, max_tokens, advice in (
        (LONG, 3, "Shorten it, or send truncate_prompt_tokens."),
        (LONG, 10, "Shorten it, and ask for fewer than 10."),
        (LONG[:9], 7, "Shorten the prompt, or ask for at most 1."),
        (LONG[:9], 10, "Ask for at most 1."),
    ):
        assert refusal(prompt, max_tokens=max_tokens).message.endswith(f". {advice}")
    cut_too = refusal(LONG, max_tokens=10, truncate_prompt_tokens=-1)
    assert "truncate" not in cut_too.message


@pytest.mark.parametrize(
    ("asked", "words", "fields"),
    [
        ({"allowed_token_ids": [2, 3], "min_tokens": 1}, (), ["allowed_token_ids", "min_tokens"]),
        (
            {"allowed_token_ids": [2, 7], "min_tokens": 1, "stop_token_ids": [7]},
            (),
            ["allowed_token_ids", "min_tokens"],
        ),
        ({"allowed_token_ids": [5, 7]}, ((5,), (7,), (7, 8)), ["allowed_token_ids", "bad_words"]),
        (
            {"allowed_token_ids": [5, 2], "min_tokens": 1},
            ((5,),),
            ["allowed_token_ids", "bad_words", "min_tokens"],
        ),
        # Something is left.
        ({"allowed_token_ids": [2, 3]}, (), None),
        ({"allowed_token_ids": [2, 3, 4], "min_tokens": 1}, (), None),
        ({"allowed_token_ids": [5]}, ((5, 6),), None),
        ({"allowed_token_ids": [2], "min_tokens": 1, "guided_regex": "a?"}, (), None),
    ],
)
def test_a_request_that_leaves_nothing_to_draw(
    asked: dict[str, Any], words: tuple[tuple[int, ...], ...], fields: list[str] | None
) -> None:
    wanted = forms.completion({"prompt": [1], "max_tokens": 2} | asked)
    if fields is None:
        entry(wanted, [[1]], LIMITS, SamplingDefaults(), ENVELOPE, words)
        return
    with pytest.raises(ApiError) as error:
        entry(wanted, [[1]], LIMITS, SamplingDefaults(), ENVELOPE, words)
    assert (error.value.status, error.value.param, error.value.code) == (400, fields[0], "contradiction")
    assert error.value.message.startswith(" and ".join(fields) + " leave no token")


def test_how_much_is_told_of_prompts_is_bounded() -> None:
    def most(**asked: Any) -> int:
        wanted = forms.completion({"prompt": [1], "max_tokens": 1} | asked)
        limits = Limits(1 << 20, 100, 99)
        prompt = [5] * ((MOST_STREAMED if asked.get("stream") else MOST_SCORED) // 8)
        for parts in range(1, 9):
            try:
                made = entry(wanted, [prompt] * parts, limits, SamplingDefaults(), ENVELOPE)
            except ApiError as error:
                refused.append(error.param)
                return parts - 1
            assert made.sampling.prompt_logprobs == wanted.output.scored
        return parts

    refused: list[str | None] = []
    assert (most(), most(echo=True), most(logprobs=3)) == (8, 8, 8) and not refused
    assert (most(prompt_logprobs=0), most(prompt_logprobs=1), most(prompt_logprobs=1, n=2)) == (8, 4, 2)
    assert (most(echo=True, logprobs=1), most(echo=True, logprobs=7, stream=True)) == (4, 1)
    assert refused == ["prompt_logprobs", "prompt_logprobs", "logprobs", "logprobs"]


def test_bad_words_come_to_so_many_tokens_over_all_choices() -> None:
    words = ((7,) * 128,) * (MOST_FORBIDDEN // 128 // 6)
    wanted = forms.completion({"prompt": [[5], [6]], "max_tokens": 2, "n": 3})
    made = ((5,), (6,)), LIMITS, SamplingDefaults(), ENVELOPE
    assert entry(wanted, *made, words).sampling.bad_words == words
    with pytest.raises(ApiError, match=f"at most {MOST_FORBIDDEN} are kept") as error:
        entry(wanted, *made, (*words, *words[:1]))
    assert (error.value.status, error.value.param, error.value.code) == (400, "bad_words", "out_of_range")
