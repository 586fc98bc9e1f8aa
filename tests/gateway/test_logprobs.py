"""What is told of a prompt, and where its tokens stand in its text."""

from typing import Any

import pytest

from pillion.contracts.entries import TokenLogprob, Tokens
from pillion.contracts.packed import pack
from pillion.gateway.answers import Answer, Head
from pillion.gateway.protocol.errors import ApiError
from pillion.gateway.protocol.request import Output


def told(tokens: tuple[int, ...]) -> list[TokenLogprob]:
    """Of each but the first: it ranks third, behind 5 and 6."""
    return [TokenLogprob(-2.0 - index, 3, ((5, -0.5), (6, -0.75))) for index in range(len(tokens) - 1)]


def cut(logprobs: list[TokenLogprob], k: int) -> list[TokenLogprob]:
    return [TokenLogprob(each.logprob, each.rank, each.top[:k]) for each in logprobs]


def head(*prompts: tuple[int, ...], echoed: tuple[str, ...] = ()) -> Head:
    return Head("r", 7, "m", "fp", prompts, echoed)


def first(tokens: tuple[int, ...], choice: int = 0, k: int = 2, **more: Any) -> Tokens:
    return Tokens("r", choice, 0, (9,), prompt_logprobs=pack(cut(told(tokens), k), k), **more)


def test_a_chat_has_it_beside_its_choices_by_token_id(demo_model: Any) -> None:
    prompt, name = (1, 300, 5), demo_model.tokenizer.token
    answer = Answer(Output("chat", n=2, prompt_logprobs=2, scored=2), head(prompt), demo_model.tokenizer)
    for choice in (1, 0):
        answer.feed(first(prompt, choice, finish="length"))

    def entry(token: int, value: float, rank: int) -> dict[str, Any]:
        return {str(token): {"logprob": value, "rank": rank, "decoded_token": name(token)}}

    likeliest = entry(5, -0.5, 1) | entry(6, -0.75, 2)
    whole = answer.whole()
    assert whole["prompt_logprobs"] == [
        None, entry(300, -2.0, 3) | likeliest, entry(5, -3.0, 3) | entry(6, -0.75, 2)
    ]  # fmt: skip
    assert all("prompt_logprobs" not in choice and "_top" not in choice for choice in whole["choices"])
    assert list(whole["prompt_logprobs"][1]) == ["300", "5", "6"], "the prompt's own token comes first"


def test_each_choice_of_a_completion_has_its_prompts(demo_model: Any) -> None:
    """Fewer alternatives are told than were needed for the echo; the shortest prompt has none at all."""
    prompts = ((1, 300), (300,))
    spec = Output("completion", echo=True, logprobs=2, prompt_logprobs=0, scored=2)
    answer = Answer(spec, head(*prompts, echoed=("ab", "b")), demo_model.tokenizer)
    for choice, prompt in enumerate(prompts):
        answer.feed(first(prompt, choice, finish="length"))
    one, other = answer.whole()["choices"]
    assert [list(entry or ()) for entry in one["prompt_logprobs"]] == [[], ["300"]]
    assert other["prompt_logprobs"] == [None]
    assert one["logprobs"]["token_logprobs"][:2] == [None, -2.0]
    assert len(one["logprobs"]["top_logprobs"][1]) == 3
    assert other["logprobs"]["token_logprobs"][0] is None and len(other["logprobs"]["tokens"]) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_an_echoed_prompt_comes_first_and_with_all_its_places(demo_model: Any, stream: bool) -> None:
    text = "Say 🙂 twice: "
    tokens = tuple(demo_model.tokenizer.encode(text, add_special=False))
    (hi,) = demo_model.tokenizer.encode("Hi", add_special=False)
    spec = Output("completion", echo=True, logprobs=1, scored=1, stream=stream, n=2)
    answer = Answer(spec, head(tokens, echoed=(text,)), demo_model.tokenizer)
    own = (TokenLogprob(-0.125, 1, ((hi, -0.125),)),)
    packed = pack([TokenLogprob(-2.0, 2, ((5, -0.5),)) for _ in tokens[1:]], 1)
    item = Tokens("r", 1, 0, (hi,), "length", logprobs=own, prompt_logprobs=packed)
    events = answer.feed(item)
    if stream:
        echo, answered, _ = [event.data["choices"][0] for event in events]
        assert (echo["text"], answered["text"]) == (text, "Hi")
        columns = {name: echo["logprobs"][name] + answered["logprobs"][name] for name in echo["logprobs"]}
        assert len(echo["logprobs"]["tokens"]) == len(tokens)
    else:
        answer.feed(Tokens("r", 0, 0, (hi,), "length", logprobs=own, prompt_logprobs=packed))
        columns = answer.whole()["choices"][1]["logprobs"]
    assert columns["token_logprobs"] == [None, *[-2.0] * (len(tokens) - 1), -0.125]
    assert columns["top_logprobs"][0] is None
    assert columns["top_logprobs"][1] == {demo_model.tokenizer.token(5): -0.5, columns["tokens"][1]: -2.0}
    places = columns["text_offset"]
    assert places == sorted(places) and (places[0], places[-1]) == (0, len(text))
    for name, place in zip(columns["tokens"], places, strict=True):
        assert name.startswith("bytes:") or (text + "Hi").startswith(name, place)


@pytest.mark.parametrize("shown", [False, True])
def test_control_tokens_have_a_place_where_the_text_has_them(demo_model: Any, shown: bool) -> None:
    """A text is echoed as it was sent, without what the tokenizer adds; token ids with all that they are."""
    plain = tuple(demo_model.tokenizer.encode("Hi there", add_special=False))
    (control,) = demo_model.tokenizer.encode("<|im_start|>", control=True, add_special=False)
    text = "<|im_start|>Hi there" if shown else "Hi there"
    tokens = (control, *plain)
    spec = Output("completion", echo=True, logprobs=0, scored=0)
    answer = Answer(spec, head(tokens, echoed=(text,)), demo_model.tokenizer)
    answer.feed(first(tokens, k=0, finish="length"))
    choice = answer.whole()["choices"][0]
    begin = text.index("Hi")
    assert choice["logprobs"]["text_offset"][:3] == [0, begin, begin + 2]


@pytest.mark.parametrize("stream", [False, True])
def test_only_the_prompt(demo_model: Any, stream: bool) -> None:
    """One token is generated, of which nothing is shown and nothing is counted."""
    tokens = tuple(demo_model.tokenizer.encode("Hi there", add_special=False))
    spec = Output(
        "completion", echo=True, logprobs=1, scored=1, only_prompt=True, stream=stream, token_ids=True,
        include_usage=True, stop_token_ids=(9,), stop=("x",),
    )  # fmt: skip
    answer = Answer(spec, head(tokens, echoed=("Hi there",)), demo_model.tokenizer)
    own = (TokenLogprob(-0.125, 1, ((9, -0.125),)),)
    events = answer.feed(first(tokens, k=1, finish="stop", stop_token=9, logprobs=own))
    events += answer.closing()
    assert answer.done
    if stream:
        (echo,), (end,), () = (event.data["choices"] for event in events)
        assert end["text"] == "" and end["logprobs"] is None
        usage = events[-1].data["usage"]
    else:
        whole = answer.whole()
        (echo,) = (end,) = whole["choices"]
        usage = whole["usage"]
    assert echo["text"] == "Hi there" and len(echo["logprobs"]["tokens"]) == len(tokens)
    assert (end["finish_reason"], end["stop_reason"], end["token_ids"]) == ("length", None, [])
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(tokens), 0)


def test_a_stream_is_the_same_from_a_record_and_from_any_event_on(demo_model: Any) -> None:
    tokens = tuple(demo_model.tokenizer.encode("Hi there", add_special=False))
    spec = Output("completion", echo=True, logprobs=1, scored=1, stream=True)

    def fresh() -> Answer:
        return Answer(spec, head(tokens, echoed=("Hi there",)), demo_model.tokenizer)

    own = (TokenLogprob(-0.125, 1, ((9, -0.125),)),)
    live = fresh()
    packed = pack([TokenLogprob(-2.0, 1, ((5, -0.5),))] * (len(tokens) - 1), 1)
    events = live.feed(Tokens("r", 0, 0, (9,), logprobs=own, prompt_logprobs=packed))
    events += live.feed(Tokens("r", 0, 0, (9, 9), logprobs=own * 2, prompt_logprobs=packed))  # comes again
    events += live.feed(Tokens("r", 0, 2, (9,), "length", logprobs=own))
    record = Tokens("r", 0, 0, (9, 9, 9), "length", logprobs=own * 3, prompt_logprobs=packed)
    assert len(events) > 4
    for delivered in range(len(events) + 1):
        assert fresh().replay([record], (delivered, 0)) == events[delivered:]


@pytest.mark.parametrize("brought", [None, pack(cut(told((1, 2, 3)), 1), 1)], ids=["nothing", "less"])
def test_a_replica_that_does_not_tell_all_is_found_out(demo_model: Any, brought: bytes | None) -> None:
    """One of another release knows nothing of the wish."""
    spec = Output("completion", echo=True, logprobs=1, scored=1)
    answer = Answer(spec, head((1, 2, 3, 4), echoed=("x",)), demo_model.tokenizer)
    answer.feed(Tokens("r", 0, 0, (9,), "length", prompt_logprobs=brought))
    assert not answer.done, "else it would be sent"
    assert isinstance(answer.failed, ApiError) and answer.failed.status == 500
    assert "did not bring the prompt's log probabilities" in answer.failed.message


def test_of_tokens_with_one_name_the_likelier_is_told(demo_model: Any) -> None:
    """Else who looks for the likeliest by its value would not find it."""

    class Alike:
        def __init__(self) -> None:
            self.detokenizer = demo_model.tokenizer.detokenizer

        def piece(self, token: int) -> bytes:
            return b"same"

    spec = Output("completion", echo=True, logprobs=2, scored=2)
    answer = Answer(spec, head((1, 2), echoed=("x",)), Alike())
    answer.feed(first((1, 2), finish="length"))
    assert answer.whole()["choices"][0]["logprobs"]["top_logprobs"][1] == {"same": -0.5}
