"""What a client says of the text: each form becomes one constraint, and what is wrong with it a 400."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request
from opentelemetry.trace import INVALID_SPAN

from pillion.contracts.entries import Constraint
from pillion.gateway.compiler import Compiler
from pillion.gateway.generate import who_asks
from pillion.gateway.guard import Guard
from pillion.gateway.model import Model
from pillion.gateway.protocol import forms
from pillion.gateway.protocol.errors import ApiError
from pillion.gateway.protocol.request import Shape
from pillion.gateway.protocol.structured import SPACES
from pillion.gateway.state import Sender
from pillion.gateway.templates import ChatTemplate
from pillion.gateway.turns import Who

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
SCHEMA = {"type": "object", "properties": {"b": {}, "a": {}}, "x-guidance": {"lenient": True}}


def shape(**fields: Any) -> Shape:
    chat, completion = forms.chat(CHAT | fields).shape, forms.completion({"prompt": "x"} | fields).shape
    assert chat == completion and chat is not None
    return chat


def said(found: Shape) -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema of a constraint, and what llguidance is told of it."""
    assert found.constraint.kind == "json"
    schema = json.loads(found.constraint.text)
    return schema, schema.pop("x-guidance")


FORMATS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "strict": ({"json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}, ".json_schema.schema", {}),
    "not strict": ({"json_schema": {"schema": SCHEMA}}, ".json_schema.schema", {"lenient": True}),
    "with an object": ({"schema": SCHEMA}, ".schema", {}),
}


@pytest.mark.parametrize("name", FORMATS)
def test_response_format(name: str) -> None:
    given, where, options = FORMATS[name]
    kind = "json_schema" if "json_schema" in given else "json_object"
    found = shape(response_format={"type": kind, **given})
    schema, told = said(found)
    assert found.param == f"response_format{where}"
    assert list(schema["properties"]) == ["b", "a"], "keys come in the schema's order"
    assert schema == {key: value for key, value in SCHEMA.items() if key != "x-guidance"}
    assert told == {"whitespace_pattern": SPACES} | options, "what the client tells llguidance does not count"


def test_any_object_and_any_text() -> None:
    schema, _ = said(shape(response_format={"type": "json_object"}))
    assert schema == {"type": "object"}
    assert said(shape(structured_outputs={"json_object": True}))[0] == {"type": "object"}
    assert forms.chat(CHAT | {"response_format": {"type": "text"}}).shape is None
    assert forms.chat(CHAT).shape is None


def test_the_fields_of_other_servers() -> None:
    for name, value, constraint in (
        ("regex", "a/b+", Constraint("regex", "a/b+")),
        ("choice", ["yes", 'a"\\\n\x7fé'], Constraint("lark", 'start: "yes" | "a\\"\\\\\\n\\u007fé"')),
        ("grammar", 'root ::= "a"', Constraint("ebnf", 'root ::= "a"')),
        ("grammar", 'start: "a ::= b"', Constraint("lark", 'start: "a ::= b"')),
    ):
        assert shape(**{f"guided_{name}": value}) == Shape(constraint, f"guided_{name}")
        inner = shape(structured_outputs={name: value})
        assert inner == Shape(constraint, f"structured_outputs.{name}")
    for found in (
        shape(guided_json=json.dumps(SCHEMA), guided_whitespace_pattern=" ?"),
        shape(structured_outputs={"json": SCHEMA, "whitespace_pattern": " ?"}),
    ):
        schema, told = said(found)
        assert list(schema["properties"]) == ["b", "a"] and told == {"whitespace_pattern": " ?"}
    _, told = said(shape(structured_outputs={"json": {}, "disable_any_whitespace": True}))
    assert told == {"whitespace_pattern": None, "whitespace_flexible": False}


def test_two_constraints_are_refused() -> None:
    with pytest.raises(ApiError, match="response_format and guided_regex") as refusal:
        shape(response_format={"type": "json_object"}, guided_regex="a")
    assert (refusal.value.status, refusal.value.param) == (400, "guided_regex")
    with pytest.raises(ApiError, match="needs guided_json"):
        shape(guided_whitespace_pattern=" ", guided_regex="a")
    assert shape(response_format={"type": "text"}, guided_regex="a").param == "guided_regex"


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    compiler = Compiler()
    yield compiler
    compiler.close()


async def test_what_can_be_compiled_passes(compiler: Compiler, demo_model: Model) -> None:
    for found in (
        shape(response_format={"type": "json_object"}),
        shape(guided_json={"type": "array", "items": {"format": "date"}}),
        shape(guided_choice=["a", "\x7f\x00 é🎉/"]),
        shape(guided_grammar='root ::= [a-z]+ | "x"'),
        shape(structured_outputs={"json": {}, "disable_any_whitespace": True}),
        # Not strict: what cannot be enforced is passed over.
        shape(response_format={"type": "json_schema", "json_schema": {"schema": {"not": {}}}}),
    ):
        await compiler.check(demo_model, found, Who("one"))


@pytest.mark.parametrize(
    ("fields", "param", "code", "words"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {
                "schema": {"properties": {"age": {"not": {}}}}, "strict": True}}},
            "response_format.json_schema.schema", "invalid_schema",
            'Unimplemented keys: ["not"] (at #/properties/age).',
        ),
        ({"guided_json": {"type": "strange"}}, "guided_json", "invalid_schema", "Invalid type: strange"),
        ({"structured_outputs": {"regex": "(?=a)"}}, "structured_outputs.regex", "invalid_grammar", "look-a"),
        ({"guided_grammar": "start: x"}, "guided_grammar", "invalid_grammar", "line 1, column 8: unknown"),
        (
            {"guided_json": {}, "guided_whitespace_pattern": "("}, "guided_json", "invalid_schema", "("
        ),
        (
            {"guided_grammar": "start: A\nA: ~/(.*)a(.*)/ & ~/(.*)b.{50}(.*)/ & /.{0,500}/"},
            "guided_grammar", "invalid_grammar", "more time or memory",
        ),
    ],
    ids=["strict", "type", "regex", "grammar", "spaces", "hostile"],
)  # fmt: skip
async def test_what_cannot_be_compiled_is_said_while_the_loop_goes_on(
    compiler: Compiler, demo_model: Model, fields: dict[str, Any], param: str, code: str, words: str
) -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turning = asyncio.create_task(turn())
    seen = []
    for _ in range(2):
        turns = 0
        with pytest.raises(ApiError) as refusal:
            await compiler.check(demo_model, shape(**fields), Who("one"))
        assert (refusal.value.status, refusal.value.param, refusal.value.code) == (400, param, code)
        assert words in refusal.value.message
        seen.append(turns)
    turning.cancel()
    assert seen[0] > (100 if "memory" in words else 0)
    assert seen[1] == 0, "the verdict is known the second time"


def asks(compiler: Compiler, model: Model, tenant: str, *patterns: str) -> list["asyncio.Task[None]"]:
    return [
        asyncio.create_task(compiler.check(model, shape(guided_regex=pattern), Who(tenant)))
        for pattern in patterns
    ]


async def test_a_flood_delays_nobody_else_and_is_sent_away(compiler: Compiler, demo_model: Model) -> None:
    served: list[str] = []
    flood = asks(compiler, demo_model, "flood", *(f"a{number:02}" for number in range(36)))
    other = asks(compiler, demo_model, "other", "other's, which is longer")
    for name, tasks in {"flood": flood, "other": other}.items():
        for task in tasks:
            task.add_done_callback(lambda done, name=name: done.exception() or served.append(name))
    outcomes = await asyncio.gather(*flood, *other, return_exceptions=True)
    sent_away = [one for one in outcomes if isinstance(one, ApiError)]
    assert len(served) == 33 and served.index("other") <= 1
    assert len(sent_away) == 4 and all(one in sent_away for one in outcomes[32:36])
    assert {(one.status, one.code, one.headers()["Retry-After"]) for one in sent_away} == {
        (429, "grammar_queue_full", "2")
    }
    await compiler.check(demo_model, shape(guided_regex="b"), Who("flood"))


@pytest.mark.parametrize(
    ("tenant", "header", "who"),
    [
        ("", None, Who("127.0.0.1")),
        ("alice", "", Who("alice")),
        ("alice", "10.0.0.1", Who("alice", "10.0.0.1")),
        ("", "made up, 10.0.0.7, 192.0.2.3 ", Who("127.0.0.1", "192.0.2.3")),
        ("", "x" * 9000, Who("127.0.0.1", "x" * 64)),
    ],
)
def test_whose_constraint_it_is(tenant: str, header: str | None, who: Who) -> None:
    http = make_mocked_request("POST", "/", {} if header is None else {"X-Forwarded-For": header})
    http = http.clone(remote="127.0.0.1")
    assert who_asks(http, Sender("id", tenant, None, INVALID_SPAN)) == who


async def test_what_many_ask_for_is_compiled_once(compiler: Compiler, demo_model: Model) -> None:
    await asyncio.gather(*asks(compiler, demo_model, "many", *["same"] * 100))


async def test_nobody_waits_for_what_nobody_asks_for_any_more(
    compiler: Compiler, demo_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = []
    check = compiler._grammars.check  # type: ignore[union-attr]
    monkeypatch.setattr(compiler._grammars, "check", lambda one: compiled.append(one.text) or check(one))
    first, gone, last = asks(compiler, demo_model, "gone", "first", "the longest", "last")
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(first, last)
    assert compiled == ["last", "first"] and gone.cancelled()


async def test_bad_words_are_written_with_and_without_a_space(start: Any) -> None:
    stack = await start()
    wish = {"bad_words": ["Paris", "x y"], "allowed_token_ids": [5, 7], "max_tokens": 4}
    answer = stack.post("/v1/chat/completions", CHAT | wish)
    request = await stack.driver.request()
    written = {stack.tokenizer.decode(word) for word in request.sampling.bad_words}
    assert written == {"Paris", " Paris", "x y", " x y"}
    assert request.sampling.allowed_token_ids == (5, 7)
    await stack.driver.play(request, [81])
    assert (await answer)[0] == 200
    status, body, _ = await stack.fetch(
        "POST", "/v1/chat/completions", json=CHAT | {"allowed_token_ids": [49152]}
    )
    assert (status, body["error"]["param"]) == (400, "allowed_token_ids")


async def test_what_lets_no_answer_begin_is_refused(start: Any) -> None:
    stack = await start()
    n, o, no, x = (stack.tokenizer.encode(text, add_special=False) for text in ("n", "o", "no", "x"))
    assert len(n) == len(no) == 1, "the condition"
    letters = (stack.tokenizer.encode(letter, add_special=False) for letter in "abcdefg")
    stops = [token for ids in letters for token in ids]
    for wish, fields in (
        ({"guided_regex": "no", "allowed_token_ids": o + x}, ["guided_regex", "allowed_token_ids"]),
        (
            {"structured_outputs": {"choice": ["no"]}, "allowed_token_ids": no, "bad_words": ["no"]},
            ["structured_outputs.choice", "allowed_token_ids", "bad_words"],
        ),
        ({"guided_regex": "[a-g]", "stop_token_ids": stops}, ["guided_regex", "stop_token_ids"]),
    ):
        status, body, _ = await stack.fetch("POST", "/v1/chat/completions", json=CHAT | wish)
        assert (status, body["error"]["code"], body["error"]["param"]) == (400, "contradiction", fields[0])
        assert body["error"]["message"].startswith(" and ".join(fields) + " leave no token")
    for wish in (
        {"guided_regex": "no", "allowed_token_ids": n + x},
        {"guided_regex": "no", "bad_words": ["no"]},
        {"guided_regex": "n?", "allowed_token_ids": x},
        {"guided_regex": "no", "stop_token_ids": [49151]},
    ):
        answer = stack.post("/v1/chat/completions", CHAT | wish | {"max_tokens": 4})
        await stack.driver.play(await stack.driver.request(), [81])
        assert (await answer)[0] == 200, wish


async def test_the_entry_carries_it(start: Any) -> None:
    stack = await start()
    answer = stack.post("/v1/chat/completions", CHAT | {"guided_regex": "a{1,9}", "max_tokens": 4})
    request = await stack.driver.request()
    assert request.sampling.constraint == Constraint("regex", "a{1,9}")
    await stack.driver.play(request, [81])
    status, _, _ = await answer
    assert status == 200
    status, body, _ = await stack.fetch("POST", "/v1/chat/completions", json=CHAT | {"guided_regex": "("})
    assert (status, body["error"]["param"], body["error"]["type"]) == (
        400,
        "guided_regex",
        "invalid_request_error",
    )
    assert stack.value("pillion_requests_started_total") == 1


@pytest.mark.parametrize("opened", [True, False])
async def test_it_holds_behind_reasoning_that_the_template_opened(
    start: Any, demo_model: Model, opened: bool
) -> None:
    source = "<|im_start|>assistant\n" + "<think>\n" * opened
    template = ChatTemplate({"default": source}, demo_model.tokenizer.special, Guard(()))
    model = Model(
        "demo", demo_model.tokenizer, template, demo_model.defaults, None, True, located=demo_model.located
    )
    stack = await start(model=model)
    answer = stack.post("/v1/chat/completions", CHAT | {"guided_regex": "a{1,9}", "max_tokens": 4})
    request = await stack.driver.request()
    assert request.sampling.constraint == Constraint("regex", "a{1,9}", "</think>" if opened else "")
    await stack.driver.play(request, [81])
    assert (await answer)[0] == 200
