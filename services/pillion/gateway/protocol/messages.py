"""The messages of a chat: roles and contents are checked, unknown keys are ignored and counted."""

from typing import Any

from pillion.gateway.protocol import values
from pillion.gateway.protocol.errors import bad

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
KNOWN = frozenset(("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content"))
KNOWN_OF_PARTS = frozenset(("type", "text"))
KNOWN_OF_CALLS = frozenset(("id", "type", "function"))
KNOWN_OF_FUNCTIONS = frozenset(("name", "arguments"))

_role = values.one_of(ROLES)
_text = values.text(1 << 30, empty=True)

_PART = {
    "type": "object", "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": _text.schema},
}  # fmt: skip
_MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": _role.schema,
        "content": {"anyOf": [_text.schema, {"type": "array", "items": _PART, "minItems": 1}]},
        **dict.fromkeys(("name", "tool_call_id", "reasoning_content"), _text.schema),
        "tool_calls": {"type": "array", "items": {"type": "object"}},
    },
}
SCHEMA = {"type": "array", "items": _MESSAGE, "minItems": 1}
"""What `messages` takes, in JSON Schema; an assistant's content may be absent too."""


def messages(name: str, value: Any) -> tuple[tuple[dict[str, Any], ...], int]:
    """The messages with their known keys, and how many others were ignored. Raises ApiError."""
    if not isinstance(value, list):
        raise bad(name, f"{name} must be an array of messages.", "invalid_type")
    if not value:
        raise bad(name, f"{name} must hold at least one message.", "empty_array")
    ignored = 0
    result = []
    for index, entry in enumerate(value):
        path = f"{name}[{index}]"
        message = values.mapping(path, entry)
        result.append(_message(path, message))
        ignored += _ignored(message)
    return tuple(result), ignored


def _ignored(message: dict[str, Any]) -> int:
    """How many keys of a checked message nobody looks at."""
    content, calls = message.get("content"), message.get("tool_calls") or ()
    parts = content if isinstance(content, list) else ()
    functions = [call["function"] for call in calls if isinstance(call.get("function"), dict)]
    return (
        len(message.keys() - KNOWN)
        + sum(len(part.keys() - KNOWN_OF_PARTS) for part in parts)
        + sum(len(call.keys() - KNOWN_OF_CALLS) for call in calls)
        + sum(len(function.keys() - KNOWN_OF_FUNCTIONS) for function in functions)
    )


def _message(path: str, message: dict[str, Any]) -> dict[str, Any]:
    if message.get("role") is None:
        raise bad(f"{path}.role", f"{path}.role is required.", "missing_required_parameter")
    role = _role(f"{path}.role", message["role"])
    result: dict[str, Any] = {"role": role}
    for key in ("name", "tool_call_id", "reasoning_content"):
        if message.get(key) is not None:
            result[key] = _text(f"{path}.{key}", message[key])
    calls = message.get("tool_calls")
    if calls:
        result["tool_calls"] = [
            _call(f"{path}.tool_calls[{index}]", call)
            for index, call in enumerate(_array(f"{path}.tool_calls", calls))
        ]
    content = message.get("content")
    if content is not None:
        result["content"] = _content(f"{path}.content", content)
    elif role != "assistant":
        raise bad(f"{path}.content", f"{path}.content is required.", "missing_required_parameter")
    else:
        result["content"] = ""
    return result


def _call(path: str, value: Any) -> dict[str, Any]:
    """What is known of a call, for the template."""
    call = values.mapping(path, value)
    known = {key: call[key] for key in call if key in KNOWN_OF_CALLS}
    function = known.get("function")
    if isinstance(function, dict):
        known["function"] = {key: function[key] for key in function if key in KNOWN_OF_FUNCTIONS}
    return known


def _content(path: str, content: Any) -> str:
    """A text, or text parts joined by line breaks: templates of text models write contents as they are."""
    if isinstance(content, str):
        return content
    if content == []:
        raise bad(path, f"{path} must hold at least one part.", "empty_array")
    texts = []
    for index, entry in enumerate(_array(path, content)):
        at = f"{path}[{index}]"
        part = values.mapping(at, entry)
        kind = part.get("type")
        if kind != "text":
            raise bad(f"{at}.type", f"{at}.type must be text: the model reads nothing else.", "invalid_value")
        texts.append(_text(f"{at}.text", part.get("text")))
    return "\n".join(texts)


def _array(path: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise bad(path, f"{path} must be a string or an array.", "invalid_type")
    return value
