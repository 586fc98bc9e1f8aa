"""From a request's bytes to a JSON object of valid text."""

import json
import re
from typing import Any

from pillion.gateway.protocol.errors import bad

MOST_NESTED = 1 << 17
"""Arrays and objects in a JSON text: the decoder keeps all other threads waiting, and each of them takes it a
microsecond."""

# Lone surrogates reach a decoded body only as escapes; without one in the bytes there is nothing to look for.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_TEXTS = re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL)


def parse(raw: bytes) -> dict[str, Any]:
    """The object in `raw`. Raises ApiError (400) for what is no JSON object or no valid Unicode."""
    try:
        # The standard decoder lets NaN and Infinity through, so that the table can name their field.
        body = load(raw.decode(json.detect_encoding(raw), "surrogatepass"))
    except UnicodeDecodeError:
        raise bad(None, "The body is not UTF-8 text.", "invalid_json") from None
    except RecursionError:
        raise bad(None, "The body is nested too deeply.", "invalid_json") from None
    except TooMany as error:
        raise bad(None, f"The body holds {error}.", "too_many_items") from None
    except ValueError as error:
        raise bad(None, f"The body is not valid JSON: {_reason(error)}.", "invalid_json") from None
    if not isinstance(body, dict):
        raise bad(None, "The body must be a JSON object.", "invalid_json")
    if _SURROGATE.search(raw):
        path = _lone_surrogate(body)
        if path is not None:
            raise bad(path, f"{path} holds a lone surrogate, which is no valid Unicode.", "invalid_unicode")
    return body


class TooMany(ValueError):
    """More arrays and objects than a JSON text may hold; the message says so."""


def load(text: str) -> Any:
    """What a client's JSON says. Raises ValueError, also as TooMany, and RecursionError."""
    if _nested(text) > MOST_NESTED and _nested(_TEXTS.sub("", text)) > MOST_NESTED:
        raise TooMany(f"more than {MOST_NESTED} arrays and objects")
    return json.loads(text)


def _nested(text: str) -> int:
    return text.count("[") + text.count("{")


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
