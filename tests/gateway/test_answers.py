"""Golden event sequences of each stream form."""

from typing import Any

from pillion.contracts.entries import TokenLogprob, Tokens
from pillion.gateway import sse
from pillion.gateway.answers import Answer, Event, Head
from pillion.gateway.protocol.request import Output

HEAD = Head("r", 7, "m", "fp", ((1, 2, 3),))


def events(spec: Output, head: Head, pieces: Any, *fed: Tokens) -> list[Any]:
    answer = Answer(spec, head, pieces)
    result = [event for item in fed for event in answer.feed(item)]
    assert answer.done
    return [event.data for event in result + answer.closing()]


def frame(kind: str, choices: list[Any], **more: Any) -> dict[str, Any]:
    prefix = "chatcmpl-r" if kind.startswith("chat") else "cmpl-r"
    return {
        "id": prefix,
        "object": kind,
        "created": 7,
        "model": "m",
        "system_fingerprint": "fp",
        "choices": choices,
        **more,
    }


def chat(delta: dict[str, Any], finish: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish, **more}
    return choice | ({"stop_reason": None} if finish and "stop_reason" not in more else {})


def text(value: str, finish: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    choice = {"index": index, "text": value, "logprobs": None, "finish_reason": finish, **more}
    return choice | ({"stop_reason": None} if finish and "stop_reason" not in more else {})


def test_a_chat(demo_model: Any) -> None:
    hi, there = demo_model.tokenizer.encode("Hi there", add_special=False)
    fed = (Tokens("r", 0, 0, (hi,)), Tokens("r", 0, 1, (there,)), Tokens("r", 0, 2, (2,), "stop", 2))
    kind = "chat.completion.chunk"
    assert events(Output("chat", stream=True), HEAD, demo_model.tokenizer, *fed) == [
        frame(kind, [chat({"role": "assistant", "content": ""})]),
        frame(kind, [chat({"content": "Hi"})]),
        frame(kind, [chat({"content": " there"})]),
        frame(kind, [chat({}, "stop")]),
    ]


def test_a_completion(demo_model: Any) -> None:
    hi, there = demo_model.tokenizer.encode("Hi there", add_special=False)
    fed = (Tokens("r", 0, 0, (hi,)), Tokens("r", 0, 1, (there,), "length"))
    kind = "text_completion"
    head = Head("r", 7, "m", "fp", ((1, 2, 3),), ("Say: ",))
    assert events(Output("completion", stream=True, echo=True), head, demo_model.tokenizer, *fed) == [
        frame(kind, [text("Say: ")]),
        frame(kind, [text("Hi")]),
        frame(kind, [text(" there")]),
        frame(kind, [text("", "length")]),
    ]


def test_a_chat_with_all_that_can_be_told(demo_model: Any) -> None:
    hi, there = demo_model.tokenizer.encode("Hi there", add_special=False)
    spec = Output(
        "chat",
        stream=True,
        logprobs=1,
        token_ids=True,
        include_usage=True,
        continuous_usage=True,
        stop=(" there",),
    )
    fed = (
        Tokens("r", 0, 0, (hi,), cached=2, logprobs=(TokenLogprob(-0.5, 1, ((hi, -0.5),)),)),
        Tokens("r", 0, 1, (there,), logprobs=(TokenLogprob(float("-inf"), 9, ((hi, -0.25),)),)),
    )
    kind = "chat.completion.chunk"

    def usage(output: int) -> dict[str, Any]:
        return {
            "prompt_tokens": 3,
            "completion_tokens": output,
            "total_tokens": 3 + output,
            "prompt_tokens_details": {"cached_tokens": 2},
        }

    def named(name: str, value: float) -> dict[str, Any]:
        return {"token": name, "logprob": value, "bytes": list(name.encode())}

    first = {"content": [named("Hi", -0.5) | {"top_logprobs": [named("Hi", -0.5)]}], "refusal": None}
    second = {"content": [named(" there", -9999.0) | {"top_logprobs": [named("Hi", -0.25)]}], "refusal": None}
    assert events(spec, HEAD, demo_model.tokenizer, *fed) == [
        frame(
            kind,
            [chat({"role": "assistant", "content": ""}, token_ids=[])],
            usage=usage(1),
            prompt_token_ids=(1, 2, 3),
        ),
        frame(kind, [chat({"content": "Hi"}, token_ids=[hi], logprobs=first)], usage=usage(1)),
        frame(
            kind, [chat({}, "stop", token_ids=[there], logprobs=second, stop_reason=" there")], usage=usage(2)
        ),
        frame(kind, [], usage=usage(2)),
    ]


def test_a_completion_with_all_that_can_be_told(demo_model: Any) -> None:
    (hi,) = demo_model.tokenizer.encode("Hi", add_special=False)
    spec = Output("completion", stream=True, logprobs=1, token_ids=True, include_usage=True)
    item = Tokens("r", 0, 0, (hi,), "length", logprobs=(TokenLogprob(-0.5, 2, ((9, -0.25),)),))
    kind = "text_completion"
    logprobs = {
        "tokens": ["Hi"],
        "token_logprobs": [-0.5],
        "top_logprobs": [{demo_model.tokenizer.token(9): -0.25, "Hi": -0.5}],
        "text_offset": [0],
    }
    usage = {
        "prompt_tokens": 3,
        "completion_tokens": 1,
        "total_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert events(spec, HEAD, demo_model.tokenizer, item) == [
        frame(kind, [text("Hi", logprobs=logprobs, token_ids=[hi], prompt_token_ids=(1, 2, 3))], usage=None),
        frame(kind, [text("", "length", token_ids=[])], usage=None),
        frame(kind, [], usage=usage),
    ]


def test_choices_of_several_prompts_stream_on_their_own(demo_model: Any) -> None:
    (hi,) = demo_model.tokenizer.encode("Hi", add_special=False)
    head = Head("r", 7, "m", "fp", ((1,), (2, 3)), ("a", "b"))
    fed = [Tokens("r", choice, 0, (hi,), "length") for choice in (3, 0, 2, 1)]
    seen = events(Output("completion", stream=True, n=2, echo=True), head, demo_model.tokenizer, *fed)
    assert [event["choices"][0] for event in seen] == [
        part
        for choice, echo in ((3, "b"), (0, "a"), (2, "b"), (1, "a"))
        for part in (text(echo, None, choice), text("Hi", None, choice), text("", "length", choice))
    ]


def test_the_whole_forms(demo_model: Any) -> None:
    (hi,) = demo_model.tokenizer.encode("Hi", add_special=False)
    usage = {
        "prompt_tokens": 3,
        "completion_tokens": 1,
        "total_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    item = Tokens("r", 0, 0, (hi,), "length")
    answer = Answer(Output("chat"), HEAD, demo_model.tokenizer)
    answer.feed(item)
    assert answer.whole() == frame(
        "chat.completion",
        [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hi", "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
                "stop_reason": None,
            }
        ],
        usage=usage,
    )
    answer = Answer(Output("completion"), HEAD, demo_model.tokenizer)
    answer.feed(item)
    assert answer.whole() == frame(
        "text_completion",
        [{"index": 0, "text": "Hi", "logprobs": None, "finish_reason": "length", "stop_reason": None}],
        usage=usage,
    )


def test_an_event_is_one_line() -> None:
    event = Event({"a": "x\n\ny\r\u2028"}, "3.4")
    assert sse.event(event) == 'id: 3.4\ndata: {"a":"x\\n\\ny\\r\u2028"}\n\n'.encode()
