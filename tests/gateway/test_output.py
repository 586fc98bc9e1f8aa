"""The output stage: the same text, entries and end, whatever the portions in which tokens come."""

import json
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillion.contracts.entries import TokenLogprob, Tokens
from pillion.gateway import position
from pillion.gateway.answers import Answer, Head
from pillion.gateway.output import Gap
from pillion.gateway.protocol.request import Calls, Output

HEAD = Head("r", 1, "m", None, ((1, 2, 3),))
TEXTS = st.one_of(
    st.text(max_size=40),
    st.text("ab 한국어日本語🙂👩‍👩‍👧é\n", max_size=40),
    st.lists(st.sampled_from(["STOP", "ST", "🙂", " the", "한", "漢字", "O", "P\n"]), max_size=15).map(
        "".join
    ),
)
EOS = 2


def logprob(token: int) -> TokenLogprob:
    return TokenLogprob(-token / 1000, 1, ((token, -token / 1000), (token + 1, -9.0)))


def items(
    tokens: list[int], cuts: list[int], finish: str = "length", stop: int | None = None
) -> list[Tokens]:
    borders = sorted({0, *(cut for cut in cuts if cut < len(tokens)), len(tokens)})
    result = []
    for a, b in pairwise(borders):
        part, last = tuple(tokens[a:b]), b == len(tokens)
        result.append(
            Tokens(
                "r",
                0,
                a,
                part,
                finish if last else None,
                stop if last else None,
                7,
                tuple(map(logprob, part)),
            )
        )
    return result or [Tokens("r", 0, 0, (), finish)]


def streamed(spec: Output, head: Head, pieces: Any, fed: list[Tokens]) -> dict[str, Any]:
    """What a client makes of the stream."""
    answer = Answer(spec, head, pieces)
    events = [event for item in fed for event in answer.feed(item)]
    assert answer.done
    parts = [event.data["choices"][0] for event in events]
    ends = [part for part in parts if part["finish_reason"] is not None]
    assert len(ends) == 1 and ends[0] is parts[-1]
    chat = spec.form == "chat"
    logprobs: dict[str, list[Any]] = {}
    for part in parts:
        for name, values in (part["logprobs"] or {}).items():
            if values is not None:
                logprobs.setdefault(name, []).extend(values)
    return {
        "text": "".join(part["delta"].get("content", "") if chat else part["text"] for part in parts),
        "logprobs": logprobs,
        "ids": [token for part in parts for token in part.get("token_ids", ())],
        "finish": ends[0]["finish_reason"],
        "stop_reason": ends[0]["stop_reason"],
        "usage": answer.usage(),
    }


def whole(spec: Output, head: Head, pieces: Any, fed: list[Tokens]) -> dict[str, Any]:
    answer = Answer(spec, head, pieces)
    assert not [event for item in fed for event in answer.feed(item)]
    body = answer.whole()
    choice = body["choices"][0]
    return {
        "text": choice["message"]["content"] if spec.form == "chat" else choice["text"],
        "logprobs": {k: v for k, v in (choice["logprobs"] or {}).items() if v},
        "ids": choice.get("token_ids", []),
        "finish": choice["finish_reason"],
        "stop_reason": choice["stop_reason"],
        "usage": body["usage"],
    }


@settings(deadline=None, max_examples=150)
@given(
    text=TEXTS,
    cuts=st.lists(st.integers(0, 80), max_size=12),
    drop=st.integers(0, 2),
    stop=st.lists(st.sampled_from(["STOP", "STO", "🙂", "한국", "OP", "\n"]), max_size=3, unique=True),
    include=st.booleans(),
    form=st.sampled_from(["chat", "completion"]),
    min_tokens=st.integers(0, 5),
    echo=st.booleans(),
)
def test_stream_and_whole_agree_whatever_the_portions(
    demo_model: Any,
    text: str,
    cuts: list[int],
    drop: int,
    stop: list[str],
    include: bool,
    form: Any,
    min_tokens: int,
    echo: bool,
) -> None:
    pieces = demo_model.tokenizer
    tokens = pieces.encode(text, add_special=False)
    tokens = tokens[: max(0, len(tokens) - drop)]  # a tail that ends inside a character
    head = Head("r", 1, "m", None, ((1, 2, 3),), ("echo🙂",) if echo and form == "completion" else ())
    fields = {
        "form": form,
        "stop": tuple(stop),
        "include_stop": include,
        "min_tokens": min_tokens,
        "logprobs": 1,
        "token_ids": True,
    }
    spec, streaming = Output(**fields), Output(**fields, stream=True)
    reference = whole(spec, head, pieces, items(tokens, list(range(len(tokens)))))
    portions = items(tokens, cuts)
    assert whole(spec, head, pieces, portions) == reference
    assert streamed(streaming, head, pieces, portions) == reference
    # Items that come again, and portions that overlap, change nothing.
    again = [item for item in portions for item in (item, item)]
    assert streamed(streaming, head, pieces, again[:-1] if len(again) > 1 else again) == reference
    shown = reference["text"].removeprefix("".join(head.echoed))
    full = pieces.decode(tokens, skip_special=True)
    assert full.startswith(shown)
    if reference["stop_reason"] is None:
        assert shown == full
    count = reference["usage"]["completion_tokens"]
    assert reference["ids"] == tokens[:count]
    if count:
        entries = reference["logprobs"]
        assert len(entries["content" if form == "chat" else "tokens"]) == count
        if form == "completion":
            offsets = entries["text_offset"]
            assert len(offsets) == len(entries["token_logprobs"]) == len(entries["top_logprobs"]) == count
            assert offsets == sorted(offsets) and offsets[0] == len("".join(head.echoed))
            for offset, name in zip(offsets, entries["tokens"], strict=True):
                if not name.startswith("bytes:") and offset + len(name) <= len(reference["text"]):
                    assert reference["text"].startswith(name, offset)
        else:
            joined = b"".join(bytes(entry["bytes"]) for entry in entries["content"])
            assert joined.decode(errors="replace").startswith(shown.rstrip("\ufffd"))


@given(cut=st.integers(0, 10))
def test_the_end_token_counts_but_shows_no_text(demo_model: Any, cut: int) -> None:
    pieces = demo_model.tokenizer
    tokens = [*pieces.encode("Paris.", add_special=False), EOS]
    for include, text in ((False, "Paris."), (True, "Paris.<|im_end|>")):
        spec = Output("chat", skip_special=False, include_stop=include, token_ids=True)
        result = whole(spec, HEAD, pieces, items(tokens, [cut], "stop", EOS))
        assert (result["text"], result["finish"], result["stop_reason"]) == (text, "stop", None)
        assert result["usage"]["completion_tokens"] == len(tokens) == len(result["ids"])


@pytest.mark.parametrize("form", ["chat", "completion"])
def test_token_ids_wait_for_no_whole_character(demo_model: Any, form: Any) -> None:
    tokens = demo_model.tokenizer.encode("𓀀𓂀", add_special=False)
    assert len(tokens) > 4  # a character is several
    answer = Answer(Output(form, token_ids=True, stream=True), HEAD, demo_model.tokenizer)
    seen = [
        [token for event in answer.feed(item) for token in event.data["choices"][0].get("token_ids", ())]
        for item in items(tokens, list(range(len(tokens))))
    ]
    assert seen == [[token] for token in tokens]


def test_a_stop_id_is_named(demo_model: Any) -> None:
    spec = Output("chat", stop_token_ids=(5,))
    result = whole(spec, HEAD, demo_model.tokenizer, items([9, 5], [], "stop", 5))
    assert result["stop_reason"] == 5


def test_special_tokens_are_shown_on_request(demo_model: Any) -> None:
    tokens = [1, *demo_model.tokenizer.encode("x", add_special=False)]
    for skip, text in ((True, "x"), (False, "<|im_start|>x")):
        assert (
            whole(Output("chat", skip_special=skip), HEAD, demo_model.tokenizer, items(tokens, []))["text"]
            == text
        )


def test_a_stop_string_ends_the_choice_here_and_only_then(demo_model: Any) -> None:
    tokens = demo_model.tokenizer.encode("one two three", add_special=False)
    answer = Answer(Output("chat", stop=(" two",)), HEAD, demo_model.tokenizer)
    for item in items(tokens, list(range(len(tokens)))):
        answer.feed(item)
    (choice,) = answer.choices
    assert choice.stopped_here and choice.finish == "stop" and choice.count < len(tokens)


def test_stop_strings_do_not_cut_a_forced_call(demo_model: Any) -> None:
    text = '<tool_call>\n{"name": "f", "arguments": {"city": "Rome"}}\n</tool_call>'
    tokens = demo_model.tokenizer.encode(text, add_special=False)
    spec = Output("chat", stop=("city",), calls=Calls("hermes", ("f",), certain=True))
    answer = Answer(spec, HEAD, demo_model.tokenizer)
    for item in items(tokens, list(range(len(tokens))), finish="stop"):
        answer.feed(item)
    (choice,) = answer.choices
    assert (choice.finish, choice.count) == ("tool_calls", len(tokens)) and not choice.stopped_here


def test_a_gap_is_told_and_can_be_filled(demo_model: Any) -> None:
    tokens = demo_model.tokenizer.encode("one two three four", add_special=False)
    answer = Answer(Output("chat"), HEAD, demo_model.tokenizer)
    answer.feed(Tokens("r", 0, 0, tuple(tokens[:1])))
    late = Tokens("r", 0, 3, tuple(tokens[3:]), "length")
    with pytest.raises(Gap) as gap:
        answer.feed(late)
    assert (gap.value.choice, gap.value.known) == (0, 1)
    answer.feed(Tokens("r", 0, 0, tuple(tokens[:3])))
    answer.feed(late)
    assert answer.whole()["choices"][0]["message"]["content"] == "one two three four"


@pytest.mark.parametrize(
    ("finish", "status", "code"),
    [
        ("error", 500, "generation_failed"),
        ("cancelled", 503, "cancelled"),
        ("impossible", 400, "contradiction"),
    ],
)
def test_a_choice_that_failed_fails_the_answer(demo_model: Any, finish: str, status: int, code: str) -> None:
    answer = Answer(Output("chat"), HEAD, demo_model.tokenizer)
    answer.feed(Tokens("r", 0, 0, (), finish))
    assert answer.failed is not None and not answer.done
    assert (answer.failed.status, answer.failed.code) == (status, code)


def test_tokens_that_are_no_characters_are_told_apart(demo_model: Any) -> None:
    pieces = demo_model.tokenizer
    tokens = pieces.encode("🙂", add_special=False)
    assert len(tokens) > 1, "the condition: a character of several tokens"
    result = whole(Output("completion", logprobs=2), HEAD, pieces, items(tokens, []))
    names = result["logprobs"]["tokens"]
    assert all(name.startswith("bytes:\\x") for name in names) and len(set(names)) == len(names)
    assert result["logprobs"]["text_offset"] == [0] * len(tokens)
    named = whole(Output("completion", logprobs=0, tokens_as_ids=True), HEAD, pieces, items(tokens, []))
    assert named["logprobs"]["tokens"] == [f"token_id:{token}" for token in tokens]


def test_cached_tokens_are_each_prompts_first_choices(demo_model: Any) -> None:
    head = Head("r", 1, "m", None, ((1, 2), (3,)))
    answer = Answer(Output("completion", n=2), head, demo_model.tokenizer)
    for choice, cached in enumerate((0, 2, 1, 1)):
        answer.feed(Tokens("r", choice, 0, (9,), "length", cached=cached))
    assert answer.usage()["prompt_tokens_details"] == {"cached_tokens": 1}
    assert answer.usage()["prompt_tokens"] == 3 and answer.usage()["completion_tokens"] == 4


def finished(answer: Answer) -> list[tuple[str, str]]:
    return [(event.id, json.dumps(event.data)) for event in answer.closing()] if answer.done else []


def fed(answer: Answer, portions: list[Tokens]) -> list[tuple[str, str]]:
    return [(event.id, json.dumps(event.data)) for item in portions for event in answer.feed(item)]


CALL = '<tool_call>{"name": "f", "arguments": {"a": "🙂 STOP"}}</tool_call>'
TOLD_APART = st.lists(
    st.sampled_from(["<think>", "</think>", CALL, CALL[:-20], "STOP", " ", "\n", "Hm", "🙂", "<"]), max_size=6
).map("".join)
READINGS = st.fixed_dictionaries(
    {
        "calls": st.none() | st.builds(partial(Calls, "hermes", ("f",)), st.booleans(), st.booleans()),
        "thinks": st.booleans(),
        "thinking": st.booleans(),
        "show_thinking": st.booleans(),
    }
)
SPECS = st.fixed_dictionaries(
    {
        "form": st.sampled_from(["chat", "completion"]),
        "stop": st.lists(st.sampled_from(["STOP", "STO", "🙂", "OP"]), max_size=2, unique=True).map(tuple),
        "include_stop": st.booleans(),
        "logprobs": st.sampled_from([None, 1]),
        "token_ids": st.booleans(),
        "include_usage": st.booleans(),
        "continuous_usage": st.booleans(),
    }
)


@settings(deadline=None, max_examples=200)
@given(
    text=TEXTS | TOLD_APART,
    cuts=st.lists(st.integers(0, 80), max_size=8),
    spec=SPECS,
    reading=READINGS,
    drop=st.integers(0, 2),
    data=st.data(),
)
def test_a_stream_that_is_cut_anywhere_goes_on_to_the_same_bytes(
    demo_model: Any, text: str, cuts: list[int], spec: Any, reading: Any, drop: int, data: Any
) -> None:
    spec = spec | (reading if spec["form"] == "chat" else {})
    pieces = demo_model.tokenizer
    tokens = pieces.encode(text, add_special=False)
    tokens = tokens[: max(0, len(tokens) - drop)]
    head = Head("r", 1, "m", None, ((1, 2, 3),), ("echo",) if spec["form"] == "completion" else ())
    output = Output(**spec, stream=True)
    answer = Answer(output, head, pieces)
    whole = fed(answer, items(tokens, list(range(len(tokens))))) + finished(answer)
    assert len({id for id, _ in whole}) == len(whole), "every event has an id of its own"
    # The items' sizes do not matter.
    answer = Answer(output, head, pieces)
    assert fed(answer, items(tokens, cuts)) + finished(answer) == whole
    # Nor where it is cut, nor how much was known by then.
    for at in range(len(whole) + 1):
        delivered = position.decode("r", whole[at - 1][0], 1) if at else (0, 0)
        known = data.draw(st.integers(0, len(tokens)))
        answer = Answer(output, head, pieces)
        record = Tokens(
            "r", 0, 0, tuple(tokens[:known]), cached=7, logprobs=tuple(map(logprob, tokens[:known]))
        )
        events = answer.replay([record], delivered)
        rest = [(event.id, json.dumps(event.data)) for event in events]
        rest += fed(answer, items(tokens, [known, *cuts])) + finished(answer)
        assert rest == whole[at:], (at, known)


def test_an_end_is_an_event_of_its_own_whether_it_comes_with_a_token_or_not(demo_model: Any) -> None:
    """What was held back, here the start of a stop string, comes with the end."""
    first, last = demo_model.tokenizer.encode("a ST", add_special=False)
    start = Tokens("r", 0, 0, (first,))
    streams = [
        fed(Answer(Output("chat", stream=True, stop=("STOP",)), HEAD, demo_model.tokenizer), [start, *end])
        for end in (
            [Tokens("r", 0, 1, (last,), "length")],
            [Tokens("r", 0, 1, (last,)), Tokens("r", 0, 2, (), "length")],
        )
    ]
    assert streams[0] == streams[1]
    assert [json.loads(data)["choices"][0]["delta"].get("content") for _, data in streams[0]] == [
        "", "a", " ", "ST", None,
    ]  # fmt: skip


@settings(deadline=None, max_examples=100)
@given(order=st.lists(st.integers(0, 2), min_size=10, max_size=60), spec=SPECS, data=st.data())
def test_each_choice_goes_on_at_its_own_place(
    demo_model: Any, order: list[int], spec: Any, data: Any
) -> None:
    """Choices may interleave otherwise after a cut; each one's events, and what they count, stay the same."""
    pieces = demo_model.tokenizer
    tokens = pieces.encode("one STO two 🙂 three four", add_special=False)
    output = Output(**spec | {"n": 3, "stop": ("🙂",)}, stream=True)
    answer = Answer(output, HEAD, pieces)
    sent: list[Any] = []
    at = [0, 0, 0]
    for choice in order:
        if at[choice] < len(tokens):
            item = Tokens(
                "r", choice, at[choice], (tokens[at[choice]],), logprobs=(logprob(1),), cached=choice
            )
            sent += answer.feed(item)
            at[choice] += 1
    cut = data.draw(st.integers(0, len(sent)))
    delivered = position.decode("r", sent[cut - 1].id, 3) if cut else (0,) * 4
    again = Answer(output, HEAD, pieces)
    record = [
        Tokens("r", choice, 0, tuple(tokens[:count]), logprobs=(logprob(1),) * count, cached=choice)
        for choice, count in enumerate(at)
    ]
    rest = again.replay(record, delivered)

    def of(events: list[Any], choice: int) -> list[str]:
        chosen = [event.data for event in events if event.data["choices"][0]["index"] == choice]
        return [json.dumps({k: v for k, v in event.items() if k != "usage"}) for event in chosen]

    for choice in range(3):
        assert of(sent[:cut], choice) + of(rest, choice) == of(sent, choice)
    assert again.usage() == answer.usage()
    if spec["continuous_usage"]:
        counts = [event.data["usage"]["completion_tokens"] for event in sent[:cut] + rest]
        assert counts == sorted(counts), "a count never falls"
