"""The messages of a chat: roles and contents are checked, unknown keys are ignored and counted."""

from typing import Any

from pillion.gateway.protocol import values
from pillion.gateway.protocol.body import TooMany, load
from pillion.gateway.protocol.errors import bad

REASONING = ("reasoning_content", "reasoning", "thinking")  # names of one thing, to clients and templates
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
KNOWN = frozenset(("role", "content", "name", "tool_calls", "tool_call_id", *REASONING))
MAX_NAME = 256  # characters of a function's
KNOWN_OF_PARTS = {"text": frozenset(("type", "text")), "refusal": frozenset(("type", "refusal"))}
KNOWN_OF_CALLS = frozenset(("id", "type", "function"))
KNOWN_OF_FUNCTIONS = frozenset(("name", "arguments"))

_role = values.one_of(ROLES)
_text = values.text(1 << 30, empty=True)

_PART = {
    "type": "object", "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": _text.schema},
}  # fmt: skip
_REFUSAL = {
    "type": "object", "required": ["type", "refusal"],
    "properties": {"type": {"const": "refusal"}, "refusal": _text.schema},
}  # fmt: skip
_TEXT_OR_NULL = {"type": ["string", "null"]}
_CALL = {
    "type": "object", "required": ["function"],
    "properties": {
        "function": {
            "type": "object", "required": ["name", "arguments"],
            "properties": {"name": _text.schema, "arguments": {"type": ["string", "object", "null"]}},
        },
    },
}  # fmt: skip
_CONTENT = (_text.schema, {"type": "array", "items": _PART, "minItems": 1})
_SAID = {"type": "array", "items": {"anyOf": [_PART, _REFUSAL]}, "minItems": 1}
_OTHERS: dict[str, Any] = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"enum": [role for role in ROLES if role != "assistant"]},
        "content": {"anyOf": [*_CONTENT]},
        **dict.fromkeys(("name", "tool_call_id", *REASONING), _TEXT_OR_NULL),
        "tool_calls": {"anyOf": [{"type": "array", "items": _CALL}, {"type": "null"}]},
    },
}
_ASSISTANT = _OTHERS | {
    "required": ["role"],
    "properties": _OTHERS["properties"]
    | {"role": {"const": "assistant"}, "content": {"anyOf": [_text.schema, _SAID, {"type": "null"}]}},
}
SCHEMA = {"type": "array", "items": {"anyOf": [_OTHERS, _ASSISTANT]}, "minItems": 1}
"""What `messages` takes, in JSON Schema."""


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
        + sum(len(part.keys() - KNOWN_OF_PARTS[part["type"]]) for part in parts)
        + sum(len(call.keys() - KNOWN_OF_CALLS) for call in calls)
        + sum(len(function.keys() - KNOWN_OF_FUNCTIONS) for function in functions)
    )


def _message(path: str, message: dict[str, Any]) -> dict[str, Any]:
    if message.get("role") is None:
        raise bad(f"{path}.role", f"{path}.role is required.", "missing_required_parameter")
    role = _role(f"{path}.role", message["role"])
    result: dict[str, Any] = {"role": role}
    for key in ("name", "tool_call_id", *REASONING):
        if message.get(key) is not None:
            result[key] = _text(f"{path}.{key}", message[key])
    thought = next((result[key] for key in REASONING if key in result), None)
    if thought is not None:
        result |= dict.fromkeys(REASONING, thought)
    calls = message.get("tool_calls")
    if calls:
        result["tool_calls"] = [
            _call(f"{path}.tool_calls[{index}]", call)
            for index, call in enumerate(_array(f"{path}.tool_calls", calls))
        ]
    content = message.get("content")
    if content is not None:
        result["content"] = _content(
            f"{path}.content", content, ("text", "refusal")[: 1 + (role == "assistant")]
        )
    elif role != "assistant":
        raise bad(f"{path}.content", f"{path}.content is required.", "missing_required_parameter")
    else:
        result["content"] = ""
    return result


def _call(path: str, value: Any) -> dict[str, Any]:
    """What is known of a call, for the template: arguments as an object, as `transformers` wants them."""
    call: dict[str, Any] = values.mapping(path, value)
    known = {key: call[key] for key in call if key in KNOWN_OF_CALLS}
    path += ".function"
    function = values.mapping(path, known.get("function"))
    name = values.text(MAX_NAME)(f"{path}.name", function.get("name"))
    return known | {
        "function": {"name": name, "arguments": _arguments(f"{path}.arguments", function.get("arguments"))}
    }


def _arguments(path: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str) and value:
        try:
            value = load(value)
        except TooMany as error:
            raise bad(path, f"{path} holds {error}.", "too_many_items") from None
        except (ValueError, RecursionError):
            raise bad(path, f"{path} must be JSON.", "invalid_value") from None
    given: dict[str, Any] = values.mapping(path, value or {})
    values.shallow(path, given)
    return given


def _content(path: str, content: Any, kinds: tuple[str, ...]) -> str:
    """A text, or parts of these kinds joined by line breaks: templates of text models write contents as they
    are.
    """
    if isinstance(content, str):
        return content
    if content == []:
        raise bad(path, f"{path} must hold at least one part.", "empty_array")
    texts = []
    for index, entry in enumerate(_array(path, content)):
        at = f"{path}[{index}]"
        part = values.mapping(at, entry)
        kind = part.get("type")
        if kind not in kinds:
            raise bad(f"{at}.type", f"{at}.type must be text: the model reads nothing else.", "invalid_value")
        texts.append(_text(f"{at}.{kind}", part.get(kind)))
    return "\n".join(texts)


def _array(path: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise bad(path, f"{path} must be a string or an array.", "invalid_type")
    return value
