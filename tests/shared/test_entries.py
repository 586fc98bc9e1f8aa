"""What goes over the bus comes back as it was, or is refused."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillion.contracts import entries
from pillion.contracts.entries import (
    SCHEMA,
    Cancel,
    ChoiceRecord,
    Constraint,
    Facts,
    Heartbeat,
    Record,
    Refusal,
    Request,
    Sampling,
    Spent,
    StepOutput,
    TokenLogprob,
    Tokens,
    UnknownSchema,
    Usage,
    decode,
    encode,
)

STORED = (Request, Cancel, StepOutput, Record, Heartbeat, Usage)

text = st.text(max_size=12)
number = st.integers(-(2**63), 2**63 - 1)
token = st.integers(0, 2**31 - 1)
tokens = st.lists(token, max_size=8).map(tuple)
real = st.floats(allow_nan=False)


def some(strategy: Any) -> Any:
    return st.none() | strategy


logprob = st.builds(TokenLogprob, real, number, st.lists(st.tuples(token, real), max_size=3).map(tuple))
logprobs = some(st.lists(logprob, max_size=3).map(tuple))
name = st.text(min_size=1, max_size=12)
count = st.integers(0, 2**62)
share, penalty = st.floats(0, 1), st.floats(-1e3, 1e3)
above = st.floats(0, 1, exclude_min=True)
seconds = st.floats(0, 1e12)
entry_id = st.builds("{}-{}".format, token, token)
sampling = st.builds(
    Sampling, count, st.floats(0, 1e38), above, token, share, penalty, penalty, above,
    st.dictionaries(token, penalty, max_size=3), token, st.booleans(), tokens, some(st.integers(0, 1024)),
    some(st.builds(Constraint, st.sampled_from(["json", "regex", "lark", "ebnf"]), name, text)),
    tokens, st.lists(st.lists(token, min_size=1, max_size=3).map(tuple), max_size=2).map(tuple),
)  # fmt: skip
facts = st.builds(
    Facts, text, text, count, count, tokens, count, count, count, count, count, text, text, number,
    number, text,
)  # fmt: skip
items = st.builds(Tokens, text, count, count, tokens, some(text), some(token), number, logprobs, some(text))
refusals = st.builds(Refusal, text, number, text, text, some(text), some(text), some(real), some(number))
choices = st.builds(ChoiceRecord, tokens, text, some(token), number, logprobs, some(text))
STRATEGIES = {
    Request: st.builds(
        Request, name, name, text, st.lists(tokens, max_size=3).map(tuple), sampling, seconds,
        st.integers(0, 1024), some(token), st.integers(-(2**31) + 1, 2**31 - 1), text, text, some(seconds),
        text, count, tokens,
    ),
    Cancel: st.builds(Cancel, name, some(count), text, text, st.booleans(), count),
    StepOutput: st.builds(
        StepOutput, text, number, number, st.lists(items, max_size=3).map(tuple),
        st.lists(refusals, max_size=2).map(tuple),
    ),
    Record: st.builds(Record, text, st.lists(choices, max_size=3).map(tuple)),
    Heartbeat: st.builds(
        Heartbeat, name, count, text, text, some(facts), entry_id, count, count, seconds, count, count, count,
        share, count, seconds, count, seconds, seconds,
    ),
    Usage: st.builds(
        Usage, name, st.lists(st.tuples(name, seconds), max_size=3).map(tuple),
        st.lists(st.builds(Spent, name, count, count), max_size=3).map(tuple),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", STORED)
def test_every_entry_survives_the_bus(kind: type[Any]):
    assert set(STRATEGIES) == set(STORED)
    seen = 0

    @given(STRATEGIES[kind])
    def survives(entry: Any) -> None:
        nonlocal seen
        seen += 1
        back = decode(encode(entry), kind)
        assert back == entry
        assert type(back) is kind

    survives()
    assert seen >= 50


@pytest.mark.parametrize("kind", STORED)
@pytest.mark.parametrize("version", [0, SCHEMA + 1, 99])
def test_another_schema_is_refused_before_anything_is_read(kind: type[Any], version: int):
    with pytest.raises(
        UnknownSchema, match=f"{kind.__name__} has schema version {version}, .* reads {SCHEMA}"
    ):
        decode(msgspec.msgpack.encode({"v": version, "something": "else"}), kind)


@pytest.mark.parametrize("kind", STORED)
def test_entries_without_a_version_are_of_the_first(kind: type[Any]):
    assert kind.__struct_fields__[-1] == "v"
    assert kind.__struct_defaults__[-1] == SCHEMA == 1


@given(st.binary(max_size=40), st.sampled_from(STORED))
def test_what_is_no_entry_is_refused(data: bytes, kind: type[Any]):
    try:
        entry = decode(data, kind)
    except (UnknownSchema, msgspec.DecodeError):
        return
    assert type(entry) is kind  # the bytes happened to be one


@pytest.mark.parametrize(
    "bad",
    [
        {"prompts": [[1, "two"]]},
        {"prompts": [[1.5]]},
        {"id": 5},
        {"sampling": {}},
        {"arrival": "now"},
        {"n": None},
    ],
)
def test_wrong_types_are_refused_by_name(bad: dict[str, Any]):
    good = {
        "id": "r", "gateway": "g", "model": "m", "prompts": [[1]], "sampling": {"seed": 1}, "arrival": 1.0,
    }  # fmt: skip
    assert decode(msgspec.msgpack.encode(good), Request).prompts == ((1,),)
    with pytest.raises(msgspec.ValidationError, match=r"\$\." + next(iter(bad))):
        decode(msgspec.msgpack.encode(good | bad), Request)
    for missing in good:
        with pytest.raises(msgspec.ValidationError, match=missing):
            decode(msgspec.msgpack.encode({k: v for k, v in good.items() if k != missing}), Request)


def test_fields_of_a_later_release_are_passed_over():
    good = {"request": "r", "reason": "x", "later": [1, 2]}
    assert decode(msgspec.msgpack.encode(good), Cancel) == Cancel("r", reason="x")


def test_entries_are_frozen_and_defaults_take_no_bytes():
    request = Request("r", "g", "m", ((1,),), Sampling(1), 0.0)
    with pytest.raises(AttributeError):
        request.n = 2  # type: ignore[misc]
    assert set(msgspec.msgpack.decode(encode(request))) == {
        "id", "gateway", "model", "prompts", "sampling", "arrival",
    }  # fmt: skip
    # One token of one stream: what a busy step writes most.
    step = StepOutput("0", 1_796_022_938_376, 5, (Tokens("0" * 32, 0, 17, (42,)),))
    assert len(encode(step)) < 100
    structs = [
        value
        for value in vars(entries).values()
        if isinstance(value, type) and value.__module__ == entries.__name__
    ]
    frozen = [each for each in structs if issubclass(each, entries.Struct) and each is not entries.Struct]
    assert len(frozen) >= 11
    assert all(each.__struct_config__.frozen for each in frozen)


def test_infinite_logprobs_come_through():
    item = Tokens("r", 0, 0, (1,), logprobs=(TokenLogprob(-math.inf, 5),))
    back = decode(encode(StepOutput("0", 1, 1, (item,))), StepOutput)
    assert back.items[0].logprobs[0].logprob == -math.inf


REQUEST = {
    "id": "r", "gateway": "g", "model": "m", "prompts": [[1]], "arrival": 1.0, "sampling": {"seed": 1},
}  # fmt: skip
BEAT = {"replica": "0", "epoch": 1, "state": "ready"}
ITEM = ["r", 0, 0, [5]]


@pytest.mark.parametrize(
    ("kind", "valid", "field", "value"),
    [
        *((Request, REQUEST, "arrival", value) for value in (math.nan, math.inf, -1.0)),
        *((Request, REQUEST, "deadline", value) for value in (math.nan, math.inf)),
        *((Request, REQUEST, "n", value) for value in (-1, 1 << 31)),
        *((Request, REQUEST, "max_tokens", value) for value in (-1, 1 << 31)),
        *((Request, REQUEST, "prompts", [[value]]) for value in (-1, 1 << 31)),
        *((Request, REQUEST, "priority", value) for value in (1 << 31, -(1 << 31))),
        *((Request, REQUEST, name, value) for name in ("id", "gateway") for value in ("", "x" * 257)),
        *((Request, REQUEST, "sampling", {"seed": 1, "top_p": value}) for value in (0.0, 1.1, math.nan)),
        *((Request, REQUEST, "sampling", {"seed": 1, "min_p": value}) for value in (-0.1, 1.1)),
        (Request, REQUEST, "sampling", {"seed": 1, "temperature": math.inf}),
        (Request, REQUEST, "sampling", {"seed": 1, "repetition_penalty": 0.0}),
        (Request, REQUEST, "sampling", {"seed": 1, "logit_bias": {5: math.nan}}),
        (Request, REQUEST, "sampling", {"seed": 1, "logit_bias": {-1: 1.0}}),
        (Request, REQUEST, "sampling", {"seed": -1}),
        (Cancel, {"request": "r"}, "choice", -1),
        *((Heartbeat, BEAT, "last_entry", value) for value in ("", "5", "a-b", "1-2-3")),
        *((Heartbeat, BEAT, name, math.nan) for name in ("prefill_rate", "kv_usage", "stalled")),
        (Heartbeat, BEAT, "credit", -1),
    ],
)
def test_what_no_service_could_go_on_with_is_refused(
    kind: type[Any], valid: dict[str, Any], field: str, value: Any
) -> None:
    decode(msgspec.msgpack.encode(valid), kind)
    with pytest.raises(msgspec.ValidationError):
        decode(msgspec.msgpack.encode(valid | {field: value}), kind)


@pytest.mark.parametrize(("place", "value"), [(1, -1), (2, -1), (3, [-1]), (3, [1 << 31])])
def test_so_are_positions_and_tokens(place: int, value: Any) -> None:
    output = {"replica": "0", "epoch": 1, "step": 1}
    decode(msgspec.msgpack.encode(output | {"items": [ITEM]}), StepOutput)
    item = [*ITEM[:place], value, *ITEM[place + 1 :]]
    with pytest.raises(msgspec.ValidationError):
        decode(msgspec.msgpack.encode(output | {"items": [item]}), StepOutput)
