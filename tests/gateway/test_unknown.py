"""Unknown fields where they are let pass."""

from typing import Any

import jsonschema_rs

from pillion.gateway import openapi
from pillion.gateway.fields import CHAT, COMPLETION, TABLE, TOKENIZE
from pillion.gateway.unknown import TOLD, Unknown


async def test_a_gateway_that_warns_ignores_them_counts_them_and_tells_each_once(
    start: Any, caplog: Any
) -> None:
    stack = await start(unknown_fields="warn")
    body = {"prompt": "x", "stream": True, "max_token": 5, "stream_options": {"usage": True}}
    for _ in range(2):
        answer = stack.post("/v1/completions", body)
        request = await stack.driver.request()
        assert request.max_tokens == 16
        await stack.driver.play(request, [100])
        assert (await answer)[0] == 200
    assert stack.value("pillion_ignored_fields_total") == 4
    assert caplog.text.count("'max_token'") == caplog.text.count("'stream_options.usage'") == 1
    # What is known and not served is refused all the same.
    status, answered, _ = await stack.fetch("POST", "/v1/completions", json=body | {"suffix": "x"})
    assert (status, answered["error"]["param"]) == (400, "suffix")
    assert (await stack.fetch("POST", "/tokenize", json={"prompt": "x", "y": 1}))[0] == 200


def test_names_inside_of_fields_are_let_pass_too() -> None:
    counted: list[int] = []
    unknown = Unknown("warn", counted.append)
    schema = {"type": "object", "x": 1}
    known = {
        "prompt": "x",
        "stream_options": {"include_usage": True},
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
        "structured_outputs": {"regex": "a"},
    }
    body: dict[str, Any] = {
        "prompt": "x",
        "stream_options": {"include_usage": True, "x": 1},
        "response_format": {
            "type": "json_schema", "json_schema": {"name": "n", "schema": schema, "x": 1}, "y": None
        },
        "structured_outputs": {"regex": "a", "backend": "b"},
    }  # fmt: skip
    assert unknown.sift(body, COMPLETION) == known and counted == [4]
    assert unknown.sift({"prompt": "x", "structured_outputs": 5}, COMPLETION)["structured_outputs"] == 5
    # The document says so.
    for more in (False, True):
        document = openapi.body(TABLE[COMPLETION], {}, more)
        for name in ("response_format", "structured_outputs", "stream_options"):
            schema = document["properties"][name]
            assert jsonschema_rs.is_valid(schema, body[name]) == more, name
            assert jsonschema_rs.is_valid(schema, known[name])
            assert not jsonschema_rs.is_valid(schema, {"regex": 5, "type": 5, "include_usage": 5})


def test_only_so_many_names_are_told(caplog: Any) -> None:
    counted: list[int] = []
    unknown = Unknown("warn", counted.append)
    names = [f"x{number}" for number in range(2 * TOLD)]
    for name in names:
        assert unknown.sift({"messages": [], name: 1}, CHAT) == {"messages": []}
    assert sum(counted) == 2 * TOLD and len(caplog.records) == TOLD
    assert unknown.sift({"prompt": "x", "a" * 10_000: 1}, TOKENIZE) == {"prompt": "x"}
    assert max(map(len, caplog.messages)) < 200


def test_a_gateway_that_rejects_leaves_them_for_the_table() -> None:
    body = {"messages": [], "x": 1}
    assert Unknown("reject", lambda count: None).sift(body, CHAT) is body


class Name(str):
    """Counts how often it is compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return super().__eq__(other)


def test_of_thousands_no_name_is_looked_for_among_the_others(caplog: Any) -> None:
    counted: list[int] = []
    body = {Name(f"x{number}"): 1 for number in range(2000)} | {"prompt": "x"}
    Name.compared = 0
    assert Unknown("warn", counted.append).sift(body, COMPLETION) == {"prompt": "x"}
    assert counted == [2000] and Name.compared < 10_000 and len(caplog.records) == TOLD
