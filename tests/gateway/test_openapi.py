"""The OpenAPI document: every route is in it, and its schemas agree with the table that is acted on."""

from typing import Any

import jsonschema_rs
import pytest

from pillion.gateway import openapi
from pillion.gateway.fields import BUDGET, CHAT, COMPLETION, STREAM_OPTIONS, TABLE, Field, Form
from pillion.gateway.meanings import MEANINGS, ROUTES
from pillion.gateway.protocol import forms
from pillion.gateway.protocol.errors import ApiError
from tests.gateway.test_fields import ACTED, ENTRIES, HARMLESS, LOGPROBS, MINIMAL, REFUSED


@pytest.mark.parametrize(("admin_key", "paths"), [(None, 22), ("root", 30)])
async def test_every_route_is_in_it(start: Any, admin_key: str | None, paths: int) -> None:
    """And what is said of routes and fields is said of such as there are."""
    stack = await start(api_key=("one",), admin_key=admin_key)
    status, document, _ = await stack.fetch("GET", "/openapi.json")
    assert (status, document["openapi"]) == (200, "3.1.0")
    assert len(document["paths"]) == paths
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            concrete = path.replace("{id}", "demo")
            got, _, _ = await stack.fetch(method.upper(), concrete, json={})
            assert got not in (404, 405), f"{method} {path} is not served"
            assert operation["summary"] == ROUTES[f"{method.upper()} {path}"]
            assert (got == 401) == ("security" in operation), path
    with_body = {
        path
        for path in document["paths"]
        if any("requestBody" in o for o in document["paths"][path].values())
    }
    assert with_body == {path for path in openapi.BODIES if admin_key or "/admin/" not in path}
    served = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    assert served == {route for route in ROUTES if admin_key or "/admin/" not in route}
    tables = (*TABLE.values(), STREAM_OPTIONS, BUDGET)
    assert set(MEANINGS) == {f.name for table in tables for f in table.values() if f.check is not None}
    chat = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]
    properties = chat["schema"]["properties"]
    assert properties["model"]["anyOf"][0]["enum"] == ["demo"]
    assert properties["max_tokens"]["anyOf"][0]["maximum"] == 2047


def valid(form: Form, body: dict[str, Any]) -> bool:
    return jsonschema_rs.is_valid(openapi.body(TABLE[form], {}), body)


def test_every_field_is_in_it() -> None:
    for table in TABLE.values():
        schema = openapi.body(table, {})
        acted = {name for name, field in table.items() if field.check is not None}
        assert set(schema["properties"]) == set(table) and len(acted) >= 2
        assert acted <= set(MEANINGS), "say in pillion.gateway.meanings what the field does"
        assert schema["required"] == [name for name, field in table.items() if field.required]


@pytest.mark.parametrize(
    ("name", "value", "taken"),
    [
        ("temperature", 2.0, True), ("temperature", 2.1, False), ("top_p", 0, False), ("top_p", 1, True),
        ("n", 1, True), ("n", 0, False), ("n", "2", False), ("seed", -1, True), ("stop", "x", True),
        ("stop", ["x"] * 16, True), ("stop", ["x"] * 17, False), ("stop", "", False), ("stop", [1], False),
        ("stop_token_ids", [0, 5], True), ("stop_token_ids", [-1], False), ("logit_bias", {"3": 1}, True),
        ("logit_bias", {"x": 1}, False), ("logit_bias", {"3": 101}, False), ("stream", 1, False),
        ("max_tokens", None, True), ("prompt", "x", True), ("prompt", [], False), ("prompt", [1, 2], True),
        ("prompt", [[1], [2]], True), ("prompt", ["x", ""], False), ("prompt", [[]], False),
        ("no_such_field", 1, False), ("stream_options", None, True),
    ],
)  # fmt: skip
def test_schema_and_table_agree(name: str, value: Any, taken: bool) -> None:
    body = {"prompt": "x", name: value}
    assert valid(COMPLETION, body) is taken
    if taken:
        forms.completion(body)
    else:
        with pytest.raises(ApiError):
            forms.completion(body)


@pytest.mark.parametrize(("form", "field"), ENTRIES, ids=[f"{form.value}-{f.name}" for form, f in ENTRIES])
def test_what_the_table_takes_the_schema_takes(form: Form, field: Field) -> None:
    minimal = {} if form is Form.TOKENIZE and field.name == "messages" else MINIMAL[form]
    assert valid(form, minimal | {field.name: None}) is not field.required
    if field.check is not None:
        good = (LOGPROBS[form] if field.name == "logprobs" else ACTED[field.name])[0]
    else:
        good = HARMLESS.get(field.name, [])
        wrong = [value for value in REFUSED if field.harmless is None or not field.harmless(value)]
        assert wrong and not any(valid(form, minimal | {field.name: value}) for value in wrong)
    for value in good:
        assert valid(form, minimal | {field.name: value}), value


async def test_where_others_are_let_pass_it_says_so(start: Any) -> None:
    stack = await start(unknown_fields="warn")
    _, document, _ = await stack.fetch("GET", "/openapi.json")
    for path in ("/v1/completions", "/tokenize"):
        content = document["paths"][path]["post"]["requestBody"]["content"]
        assert content["application/json"]["schema"]["additionalProperties"] is True
    options = openapi.body(TABLE[CHAT], {})["properties"]["stream_options"]["anyOf"][0]
    assert options["additionalProperties"] is False and set(options["properties"]) == set(STREAM_OPTIONS)


@pytest.mark.parametrize(
    ("message", "taken"),
    [
        ({"role": "user", "content": "x"}, True),
        ({"role": "user", "content": [{"type": "text", "text": "x"}]}, True),
        ({"role": "user", "content": []}, False),
        ({"role": "nobody", "content": "x"}, False),
        ({"role": "user"}, False),
        ({"role": "user", "content": [{"type": "image_url", "text": "x"}]}, False),
        ({"role": "user", "content": "x", "more": 1}, True),
    ],
)
def test_messages_too(message: dict[str, Any], taken: bool) -> None:
    body = {"messages": [message]}
    assert valid(CHAT, body) is taken
    if taken:
        forms.chat(body)
    else:
        with pytest.raises(ApiError):
            forms.chat(body)
