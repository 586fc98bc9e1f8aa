"""What the API takes and gives, as an OpenAPI 3.1 document made from the table of fields. Pure."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pillion.contracts.entries import Facts
from pillion.gateway.fields import (
    BUDGET,
    CHAT,
    COMPLETION,
    DETOKENIZE,
    STREAM_OPTIONS,
    TABLE,
    TOKENIZE,
    Field,
)
from pillion.gateway.meanings import MEANINGS, ROUTES
from pillion.gateway.page import FILES
from pillion.gateway.protocol import structured
from pillion.version import VERSION

BODIES: Mapping[str, Mapping[str, Field]] = {
    "/v1/chat/completions": TABLE[CHAT],
    "/v1/completions": TABLE[COMPLETION],
    "/tokenize": TABLE[TOKENIZE],
    "/detokenize": TABLE[DETOKENIZE],
    "/admin/v1/budgets/{id}": BUDGET,
}
"""Which routes take a body, and of which fields, with POST or PUT."""

OPEN = ("/health", "/health/ready", "/health/live", "/version", "/metrics", "/openapi.json", *FILES)
"""Routes that need no key."""

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def document(
    routes: Iterable[tuple[str, Collection[str]]],
    models: Collection[str],
    facts: Facts | None,
    more: bool = False,
) -> dict[str, Any]:
    """`routes`: paths, with `{name}` for what varies, and their methods. Limits are those of `facts`.
    `more`: fields that are not known are let pass.
    """
    limits = _limits(models, facts)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Pillion",
            "version": VERSION,
            "description": "OpenAI's API. A field that is null is as good as absent.",
        },
        "paths": {
            path: {method.lower(): _operation(path, method, limits, more) for method in methods}
            for path, methods in routes
        },
        "components": {
            "schemas": {"Error": _ERROR},
            "securitySchemes": {name: {"type": "http", "scheme": "bearer"} for name in ("key", "admin")},
        },
    }


def _operation(path: str, method: str, limits: Mapping[str, Mapping[str, Any]], more: bool) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": f"{method.lower()} {path}",
        "summary": ROUTES[f"{method} {path}"],
        "responses": _responses(path),
    }
    if path.startswith("/admin/"):
        operation["security"] = [{"admin": []}]
    elif path not in OPEN:
        operation["security"] = [{"key": []}, {}]
    name = path.partition("{")[2].partition("}")[0]
    if name:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": limits.get(name) or _TEXT}
        ]
    if path in BODIES and method in ("POST", "PUT"):
        schema = body(BODIES[path], limits, more)
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


_TEXT = {"type": "string", "minLength": 1}


def body(
    table: Mapping[str, Field], limits: Mapping[str, Mapping[str, Any]], more: bool = False
) -> dict[str, Any]:
    """The schema of a body. What several fields must agree on is not in it. `more`: others are let pass."""
    return {
        "type": "object",
        "additionalProperties": more,
        "required": [field.name for field in table.values() if field.required],
        "properties": {field.name: _property(field, limits, more) for field in table.values()},
    }


_KINDS: Mapping[type | None, str] = {str: "string", dict: "object"}


def _property(field: Field, limits: Mapping[str, Mapping[str, Any]], more: bool) -> Mapping[str, Any]:
    if field.refused:
        return {"enum": [*field.unless, None], "description": f"Refused: {field.why}."}
    if field.check is None:
        return {"type": [_KINDS[field.kind], "null"], "description": "It changes no answer."}
    schema: dict[str, Any] = {**field.check.schema, **limits.get(field.name, {})}
    if field.name == "stream_options":
        schema = body(STREAM_OPTIONS, {}, more)
    if more and field.name in structured.NESTED:
        schema = _opened(schema)
    schema = schema | {"description": MEANINGS[field.name]}
    return schema if field.required else {"anyOf": [schema, {"type": "null"}]}


def _opened(schema: Any) -> Any:
    """The same with names that are not known let pass."""
    match schema:
        case dict():
            return {key: _opened(item) for key, item in schema.items() if key != "additionalProperties"}
        case list() | tuple():
            return [_opened(item) for item in schema]
    return schema


def _limits(models: Collection[str], facts: Facts | None) -> Mapping[str, Mapping[str, Any]]:
    """What is narrower for the served models than in the table."""
    limits: dict[str, Mapping[str, Any]] = {}
    if models:
        limits["model"] = {"enum": sorted(models)}
    if facts is not None:
        tokens = {"maximum": facts.max_model_len - 1}
        limits |= {"max_tokens": tokens, "max_completion_tokens": tokens, "min_tokens": tokens}
    return limits


def _responses(path: str) -> dict[str, Any]:
    json = {"application/json": {"schema": {"type": "object"}}}
    content: dict[str, Any] = json
    if path in ("/v1/chat/completions", "/v1/completions") or path.startswith("/v1/streams/"):
        content = json | {"text/event-stream": {"schema": {"type": "string"}}}
    elif path == "/metrics":
        content = {"text/plain": {"schema": {"type": "string"}}}
    elif path in FILES:
        content = {FILES[path][1]: {"schema": {"type": "string"}}}
    error = {"$ref": "#/components/schemas/Error"}
    if path.startswith("/health"):
        return {code: {"description": text, "content": json} for code, text in _HEALTH.items()}
    return {
        "2XX": {"description": "The answer.", "content": content},
        "default": {"description": "Why not.", "content": {"application/json": {"schema": error}}},
    }


_HEALTH = {"200": "It is.", "503": "It is not, and why."}
