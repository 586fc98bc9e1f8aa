"""The table: what every field of a request does. It is acted on, harmless at some values, or refused by name.

A field that is null is as good as absent. A field that is not in the table is refused too, and the nearest
name that is there is told. Sources: OpenAI's API reference for chat completions and completions, and the
sampling fields that open-source servers have in common.
"""

import difflib
import enum
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pillion.gateway.protocol import messages, structured, tools, values
from pillion.gateway.protocol.errors import bad

MAX_STOPS = 16
MAX_STOP_LENGTH = 1024  # characters; a stream holds back at most that much
MAX_STOP_TOKENS = 256
MAX_BIASES = 1024
MAX_ALLOWED = 4096
MAX_BAD_WORDS = 256
MAX_BAD_WORD = 256  # characters
MAX_TOP_LOGPROBS = 20
MAX_CHOICES = 1024  # of the form; the configuration sets a lower bound
MAX_LABEL = 512
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
# What templates get from the server, and `self`, which is Jinja's own.
TEMPLATE_OWN = (
    "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "self",
    "bos_token", "eos_token", "pad_token", "unk_token", "raise_exception", "strftime_now",
)  # fmt: skip


class Form(enum.Enum):
    """A kind of request body."""

    CHAT = "chat"
    COMPLETION = "completion"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"


CHAT, COMPLETION, TOKENIZE, DETOKENIZE = Form
GENERATE = (CHAT, COMPLETION)
Harmless = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of some forms.

    `check` is set for what is acted on: it gives the value to use. Else `harmless` tells the values that
    change nothing; all others are refused because `why`.
    """

    name: str
    forms: tuple[Form, ...]
    check: values.Check | None = None
    default: Any = None
    required: bool = False
    harmless: Harmless | None = None
    why: str = ""
    kind: type | None = None  # of what is harmless
    refused: bool = False  # but for these values
    unless: tuple[Any, ...] = ()


def acted(
    name: str, forms: tuple[Form, ...], check: values.Check, default: Any = None, *, required: bool = False
) -> Field:
    return Field(name, forms, check, default, required)


def harmless(name: str, forms: tuple[Form, ...], kind: type, why: str) -> Field:
    return Field(name, forms, harmless=lambda value: isinstance(value, kind), why=why, kind=kind)


def refused(name: str, forms: tuple[Form, ...], why: str, unless: tuple[Any, ...] = ()) -> Field:
    """`unless`: the values that ask for nothing; 0 is not False here."""
    harmless = partial(_among, options=unless)
    return Field(name, forms, harmless=harmless, why=why, refused=True, unless=unless)


def _among(value: Any, options: tuple[Any, ...]) -> bool:
    return any(type(value) is type(option) and value == option for option in options)


_id = values.integer(0, values.INT32)
_ids = {"type": "array", "items": _id.schema, "minItems": 1}
_line = {"type": "string", "minLength": 1}
_prompts = {
    "anyOf": [
        _line,
        _ids,
        {"type": "array", "items": _line, "minItems": 1},
        {"type": "array", "items": _ids, "minItems": 1},
    ]
}
_messages = values.unchecked(messages.SCHEMA)
_number, _integer, _boolean, _text = values.number, values.integer, values.boolean, values.text
_functions = "it is of an older kind"
_texts_only = "only text is supported"
_thinking = "the model has no such setting; see chat_template_kwargs"
_template = "the server gives it to the chat template"
_engine = "it has no meaning here"

FIELDS: tuple[Field, ...] = (
    # What is asked, of whom
    acted("model", tuple(Form), _text(MAX_LABEL)),
    acted("messages", (CHAT,), _messages, required=True),
    acted("messages", (TOKENIZE,), _messages),
    acted("prompt", (COMPLETION,), values.unchecked(_prompts), required=True),
    acted("prompt", (TOKENIZE,), _text(1 << 30, empty=True)),
    acted("tokens", (DETOKENIZE,), values.integers(0, values.INT32, 1 << 22), required=True),
    # The chat template
    acted("add_generation_prompt", (CHAT, TOKENIZE), _boolean, True),
    acted("continue_final_message", (CHAT, TOKENIZE), _boolean, False),
    acted("chat_template_kwargs", (CHAT, TOKENIZE), values.mapping_without(TEMPLATE_OWN, _template)),
    acted("add_special_tokens", (CHAT, COMPLETION, TOKENIZE), _boolean),
    acted("parse_special", (CHAT, COMPLETION, TOKENIZE), _boolean, False),
    acted("return_token_strs", (TOKENIZE,), _boolean, False),
    # Tools and reasoning
    acted("tools", (CHAT, TOKENIZE), tools.definitions, ()),
    acted("tool_choice", (CHAT,), tools.choice),
    acted("parallel_tool_calls", (CHAT,), _boolean, True),
    acted("reasoning_effort", (CHAT, TOKENIZE), values.one_of(EFFORTS)),
    acted("include_reasoning", (CHAT,), _boolean, True),
    acted("truncate_prompt_tokens", GENERATE, _integer(-1, values.INT32)),
    acted("truncation_side", GENERATE, values.one_of(("left", "right")), "left"),
    # How much, and where it ends
    acted("max_tokens", (CHAT,), _integer(1, values.INT32)),
    acted("max_completion_tokens", (CHAT,), _integer(1, values.INT32)),
    acted("max_tokens", (COMPLETION,), _integer(0, values.INT32)),
    acted("max_completion_tokens", (COMPLETION,), _integer(0, values.INT32)),
    acted("min_tokens", GENERATE, _integer(0, values.INT32), 0),
    acted("n", GENERATE, _integer(1, MAX_CHOICES), 1),
    acted("best_of", (COMPLETION,), _integer(1, MAX_CHOICES)),
    acted("stop", GENERATE, values.one_or_listed(_text(MAX_STOP_LENGTH), MAX_STOPS), ()),
    acted("stop_token_ids", GENERATE, values.listed(_id, MAX_STOP_TOKENS), ()),
    acted("include_stop_str_in_output", GENERATE, _boolean, False),
    acted("ignore_eos", GENERATE, _boolean, False),
    # How tokens are drawn
    acted("temperature", GENERATE, _number(0.0, 2.0)),
    acted("top_p", GENERATE, _number(0.0, 1.0, above=True)),
    acted("top_k", GENERATE, _integer(-1, values.INT32)),
    acted("min_p", GENERATE, _number(0.0, 1.0)),
    acted("frequency_penalty", GENERATE, _number(-2.0, 2.0), 0.0),
    acted("presence_penalty", GENERATE, _number(-2.0, 2.0), 0.0),
    acted("repetition_penalty", GENERATE, _number(0.0, 100.0, above=True)),
    acted("logit_bias", GENERATE, values.bias(MAX_BIASES), {}),
    acted("allowed_token_ids", GENERATE, values.listed(_id, MAX_ALLOWED), ()),
    acted("bad_words", GENERATE, values.listed(_text(MAX_BAD_WORD), MAX_BAD_WORDS), ()),
    acted("seed", GENERATE, _integer(-values.INT64 - 1, values.INT64)),
    # What the text has to be
    acted("response_format", GENERATE, structured.response_format),
    acted("structured_outputs", GENERATE, structured.structured_outputs),
    acted("guided_json", GENERATE, structured.schema),
    acted("guided_regex", GENERATE, structured.regex),
    acted("guided_choice", GENERATE, structured.choice),
    acted("guided_grammar", GENERATE, structured.grammar),
    acted("guided_whitespace_pattern", GENERATE, _text(MAX_LABEL)),
    # What the answer tells
    acted("stream", GENERATE, _boolean, False),
    acted("stream_options", GENERATE, values.mapping),
    acted("logprobs", (CHAT,), _boolean, False),
    acted("top_logprobs", (CHAT,), _integer(0, MAX_TOP_LOGPROBS)),
    acted("logprobs", (COMPLETION,), _integer(0, MAX_TOP_LOGPROBS)),
    acted("prompt_logprobs", GENERATE, _integer(0, MAX_TOP_LOGPROBS)),
    acted("echo", (COMPLETION,), _boolean, False),
    acted("skip_special_tokens", GENERATE, _boolean, True),
    acted("return_token_ids", GENERATE, _boolean, False),
    acted("return_tokens_as_token_ids", GENERATE, _boolean, False),
    # How it is run
    acted("priority", GENERATE, _integer(-values.INT32, values.INT32), 0),
    acted("cache_salt", GENERATE, _text(MAX_LABEL)),
    acted("request_id", GENERATE, _text(MAX_LABEL)),
    # Labels and hints, which change no answer
    harmless("user", GENERATE, str, "it must be a string"),
    harmless("safety_identifier", GENERATE, str, "it must be a string"),
    harmless("metadata", GENERATE, dict, "it must be an object"),
    harmless("prompt_cache_key", GENERATE, str, "it must be a string; see cache_salt"),
    harmless("prompt_cache_retention", GENERATE, str, "it must be a string"),
    harmless("guided_decoding_backend", GENERATE, str, "it must be a string"),
    harmless("prompt_cache_options", GENERATE, dict, "it must be an object"),
    refused("store", (CHAT,), "answers are not stored", unless=(False,)),
    refused("service_tier", GENERATE, "there is one tier", unless=("auto", "default")),
    refused("verbosity", (CHAT,), "the model has no such setting", unless=("medium",)),
    refused("spaces_between_special_tokens", GENERATE, "it cannot be turned off", unless=(True,)),
    # Not here, or not yet
    refused("functions", (CHAT,), f"{_functions}; use tools", unless=([],)),
    refused("function_call", (CHAT,), f"{_functions}; use tool_choice", unless=("none", "auto")),
    refused("structural_tag", GENERATE, "use structured_outputs.grammar"),
    refused("audio", (CHAT,), _texts_only),
    refused("modalities", (CHAT,), _texts_only, unless=(["text"],)),
    refused("mm_processor_kwargs", GENERATE, _texts_only, unless=({},)),
    refused("prompt_embeds", GENERATE, _texts_only),
    refused("moderation", (CHAT,), "there is no moderation"),
    refused("prediction", (CHAT,), "predicted outputs are not supported"),
    refused("thinking_token_budget", (CHAT,), _thinking),
    refused("web_search_options", (CHAT,), "there is no web search"),
    refused("suffix", (COMPLETION,), "filling in the middle is not supported", unless=("",)),
    refused("echo", (CHAT,), "only completions echo their prompt", unless=(False,)),
    refused("logprob_token_ids", GENERATE, "only those of the likeliest are told", unless=([],)),
    refused("chat_template", (CHAT, TOKENIZE), "templates come from the server; see chat_template_kwargs"),
    refused("documents", (CHAT,), "documents are not supported; put them into a message", unless=([],)),
    refused("logits_processors", GENERATE, "code does not travel in requests", unless=([],)),
    refused("use_beam_search", GENERATE, "beam search is not supported", unless=(False,)),
    refused("length_penalty", GENERATE, "beam search is not supported", unless=(1, 1.0)),
    refused("early_stopping", GENERATE, "beam search is not supported", unless=(False,)),
    refused("repetition_detection", GENERATE, "use repetition_penalty"),
    refused("kv_transfer_params", GENERATE, _engine),
    refused("vllm_xargs", GENERATE, _engine, unless=({},)),
    refused("nvext", GENERATE, _engine, unless=({},)),
    refused("extra_body", tuple(Form), "what it holds belongs at the top level of the body"),
    refused("return_token_strs", GENERATE, "only /tokenize returns them", unless=(False,)),
)  # fmt: skip

TABLE: Mapping[Form, Mapping[str, Field]] = {
    form: {field.name: field for field in FIELDS if form in field.forms} for form in Form
}

STREAM_OPTIONS: Mapping[str, Field] = {
    field.name: field
    for field in (
        acted("include_usage", GENERATE, _boolean, False),
        acted("continuous_usage_stats", GENERATE, _boolean, False),
        refused("include_obfuscation", GENERATE, "streams are not padded", unless=(False,)),
    )
}

BUDGET: Mapping[str, Field] = {
    field.name: field
    for field in (
        acted("max_num_batched_tokens", (), _integer(1, values.INT32)),
        acted("slo_tbt", (), _number(0.0, 3600.0, above=True)),
    )
}
"""The body of an administrator's budget for a replica; what is null or absent is as configured."""


def read(body: Mapping[str, Any], table: Mapping[str, Field], prefix: str = "") -> dict[str, Any]:
    """The value to use for each field that is acted on. Raises ApiError (400) that names the field."""
    for name in unknown(body, table):
        raise bad(
            prefix + name[:MAX_LABEL],
            f"Unknown parameter: {shown(prefix + name)}.{_nearest(name, table)}",
            "unknown_parameter",
        )
    result: dict[str, Any] = {}
    for name, field in table.items():
        value = body.get(name)
        path = prefix + name
        if value is None:
            if field.required:
                raise bad(path, f"{path} is required.", "missing_required_parameter")
            if field.check is not None:
                result[name] = field.default
        elif field.check is not None:
            result[name] = field.check(path, value)
        elif field.harmless is None or not field.harmless(value):
            if not field.refused:
                raise bad(path, f"{path} {field.why.removeprefix('it ')}.", "invalid_type")
            raise bad(path, f"{path} is refused: {field.why}.", "unsupported_parameter")
    return result


def unknown(body: Mapping[str, Any], table: Collection[str]) -> list[str]:
    """The fields that are not in the table."""
    return [name for name in body if name not in table]


def shown(name: str) -> str:
    """A client's name for a thing, fit for a message."""
    return repr(name if len(name) <= 64 else name[:64] + "...")


_TABLE_NAMES = re.compile(r"[^a-z]")


def _nearest(name: str, table: Mapping[str, Field]) -> str:
    known = {_TABLE_NAMES.sub("", field): field for field in table}
    match = difflib.get_close_matches(_TABLE_NAMES.sub("", name[:64].lower()), known, n=1)
    return f" Did you mean {known[match[0]]!r}?" if match else ""
