"""From a request's bytes to a JSON object of valid text."""

import json
import re
from typing import Any

from pillion.gateway.protocol.errors import bad

# Lone surrogates reach a decoded body only as escapes; without one in the bytes there is nothing to look for.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse(raw: bytes) -> dict[str, Any]:
    """The object in `raw`. Raises ApiError (400) for what is no JSON object or no valid Unicode."""
    try:
        # The standard decoder lets NaN and Infinity through, so that the table can name their field.
        body = json.loads(raw)
    except UnicodeDecodeError:
        raise bad(None, "The body is not UTF-8 text.", "invalid_json") from None
    except RecursionError:
        raise bad(None, "The body is nested too deeply.", "invalid_json") from None
    except ValueError as error:
        raise bad(None, f"The body is not valid JSON: {_reason(error)}.", "invalid_json") from None
    if not isinstance(body, dict):
        raise bad(None, "The body must be a JSON object.", "invalid_json")
    if _SURROGATE.search(raw):
        path = _lone_surrogate(body)
        if path is not None:
            raise bad(path, f"{path} holds a lone surrogate, which is no valid Unicode.", "invalid_unicode")
    return body


def _reason(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at line {error.lineno}, column {error.colno}"
    return "a number has too many digits"


def _lone_surrogate(body: dict[str, Any]) -> str | None:
    """Where the first text with a lone surrogate stands, as in `messages[0].content`."""
    stack: list[tuple[str, Any]] = [("", body)]
    while stack:
        path, value = stack.pop()
        match value:
            case str():
                if not _valid(value):
                    return path
            case dict():
                for key, item in value.items():
                    if not _valid(key):
                        return path or "a key"
                    stack.append((f"{path}.{key}" if path else key, item))
            case list():
                stack.extend((f"{path}[{index}]", item) for index, item in enumerate(value))
    return None


def _valid(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
