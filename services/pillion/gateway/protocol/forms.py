"""Each form's body becomes the neutral record. What spans several fields is checked here."""

from typing import Any

from pillion.gateway import fields
from pillion.gateway.fields import CHAT, COMPLETION, DETOKENIZE, TABLE, TOKENIZE
from pillion.gateway.protocol.errors import bad
from pillion.gateway.protocol.messages import messages
from pillion.gateway.protocol.request import (
    Detokenize,
    Generation,
    Keep,
    Messages,
    Output,
    Texts,
    Tokenize,
    Tools,
    Wishes,
)
from pillion.gateway.protocol.structured import shape
from pillion.gateway.protocol.tools import described, tools
from pillion.gateway.protocol.values import INT32

COMPLETION_MAX_TOKENS = 16  # OpenAI's default for completions


def chat(body: dict[str, Any]) -> Generation:
    """POST /v1/chat/completions. Raises ApiError."""
    asked = fields.read(body, TABLE[CHAT])
    may_call = tools(asked)
    prompt = _messages(asked, may_call.definitions if may_call else ())
    logprobs = None
    if asked["logprobs"]:
        logprobs = asked["top_logprobs"] or 0
    elif asked["top_logprobs"]:
        raise bad("top_logprobs", "top_logprobs needs logprobs to be true.", "invalid_value")
    return _generation(asked, prompt, logprobs, may_call)


def completion(body: dict[str, Any]) -> Generation:
    """POST /v1/completions. Raises ApiError."""
    asked = fields.read(body, TABLE[COMPLETION])
    prompt = _prompts(asked)
    if asked["best_of"] not in (None, 1, asked["n"]):
        raise bad("best_of", "best_of must equal n: all choices are returned.", "unsupported_parameter")
    return _generation(asked, prompt, asked["logprobs"])


def tokenize(body: dict[str, Any]) -> Tokenize:
    """POST /tokenize: `prompt` as for completions, or `messages` as for chats. Raises ApiError."""
    asked = fields.read(body, TABLE[TOKENIZE])
    if (asked["prompt"] is None) == (asked["messages"] is None):
        raise bad("prompt", "Give either prompt or messages.", "missing_required_parameter")
    if asked["messages"] is not None:
        return Tokenize(_messages(asked, asked["tools"]), asked["model"], asked["return_token_strs"])
    return Tokenize(_texts(asked, [asked["prompt"]]), asked["model"], asked["return_token_strs"])


def detokenize(body: dict[str, Any]) -> Detokenize:
    """POST /detokenize. Raises ApiError."""
    asked = fields.read(body, TABLE[DETOKENIZE])
    return Detokenize(asked["tokens"], asked["model"])


def _messages(asked: dict[str, Any], tools: tuple[dict[str, Any], ...]) -> Messages:
    listed, ignored = messages("messages", asked["messages"])
    if asked["continue_final_message"] and asked["add_generation_prompt"]:
        raise bad(
            "continue_final_message",
            "continue_final_message needs add_generation_prompt to be false.",
            "invalid_value",
        )
    return Messages(
        listed,
        asked["add_generation_prompt"],
        asked["continue_final_message"],
        asked["chat_template_kwargs"],
        described(tools),
        bool(asked["add_special_tokens"]),
        asked["parse_special"],
        ignored,
        asked["reasoning_effort"],
    )


def _texts(asked: dict[str, Any], texts: list[str]) -> Texts:
    special = asked["add_special_tokens"]
    return Texts(tuple(texts), (), True if special is None else special, asked["parse_special"])


def _prompts(asked: dict[str, Any]) -> Texts:
    """A text, a list of texts, token ids, or a list of lists of them."""
    value = asked["prompt"]
    match value:
        case str():
            texts: list[Any] = [value]
        case [int(), *_]:
            return Texts(ids=(_ids("prompt", value),))
        case [list(), *_]:
            return Texts(ids=tuple(_ids(f"prompt[{index}]", entry) for index, entry in enumerate(value)))
        case [*entries]:
            texts = entries
        case _:
            raise bad("prompt", "prompt must be a string, token ids, or an array of either.", "invalid_type")
    if not texts or "" in texts:
        raise bad("prompt", "prompt must not be empty.", "empty_string")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise bad(f"prompt[{index}]", "prompt must hold strings only, or token ids only.", "invalid_type")
    return _texts(asked, texts)


def _ids(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(number) is int for number in value):
        raise bad(name, "prompt must hold strings only, or token ids only.", "invalid_type")
    if not value:
        raise bad(name, f"{name} must not be empty.", "empty_array")
    if not all(0 <= number <= INT32 for number in value):
        raise bad(name, f"{name} holds a token id outside the vocabulary.", "out_of_range")
    return tuple(value)


def _generation(
    asked: dict[str, Any], prompt: Messages | Texts, logprobs: int | None, may_call: Tools | None = None
) -> Generation:
    max_tokens = _max_tokens(asked)
    completion = isinstance(prompt, Texts)
    if max_tokens is None and completion:
        # At least one of both holds; min_tokens alone means that so many are wanted.
        max_tokens = max(COMPLETION_MAX_TOKENS, asked["min_tokens"])
    if max_tokens == 0 and not asked.get("echo"):
        name = "max_completion_tokens" if asked["max_tokens"] is None else "max_tokens"
        raise bad(name, f"{name} must be at least 1; with echo it may be 0.", "out_of_range")
    if asked["prompt_logprobs"] is not None and asked["stream"]:
        raise bad("prompt_logprobs", "prompt_logprobs needs stream to be false.", "invalid_value")
    if max_tokens is not None and asked["min_tokens"] > max_tokens:
        raise bad("min_tokens", f"min_tokens must be at most max_tokens, {max_tokens}.", "out_of_range")
    options = _stream_options(asked)
    return Generation(
        prompt=prompt,
        output=Output(
            form="completion" if completion else "chat",
            stream=asked["stream"],
            n=asked["n"],
            stop=asked["stop"],
            stop_token_ids=asked["stop_token_ids"],
            include_stop=asked["include_stop_str_in_output"],
            min_tokens=asked["min_tokens"],
            skip_special=asked["skip_special_tokens"],
            logprobs=logprobs,
            echo=asked.get("echo", False),
            prompt_logprobs=asked["prompt_logprobs"],
            scored=_scored(asked, logprobs),
            only_prompt=max_tokens == 0,
            include_usage=options["include_usage"],
            continuous_usage=options["continuous_usage_stats"],
            token_ids=asked["return_token_ids"],
            tokens_as_ids=asked["return_tokens_as_token_ids"],
            show_thinking=asked.get("include_reasoning", True),
            continues=isinstance(prompt, Texts) or prompt.continue_final_message,
        ),
        wishes=Wishes(
            temperature=asked["temperature"],
            top_p=asked["top_p"],
            top_k=asked["top_k"],
            min_p=asked["min_p"],
            repetition_penalty=asked["repetition_penalty"],
            frequency_penalty=asked["frequency_penalty"],
            presence_penalty=asked["presence_penalty"],
            logit_bias=asked["logit_bias"],
            seed=asked["seed"],
            min_tokens=asked["min_tokens"],
            ignore_eos=asked["ignore_eos"],
            stop_token_ids=asked["stop_token_ids"],
            allowed_token_ids=asked["allowed_token_ids"],
            bad_words=asked["bad_words"],
        ),
        tools=may_call,
        shape=shape(asked),
        model=asked["model"],
        max_tokens=max_tokens,
        keep=_keep(asked),
        priority=asked["priority"],
        cache_salt=asked["cache_salt"] or "",
        label=asked["request_id"],
    )


def _scored(asked: dict[str, Any], logprobs: int | None) -> int | None:
    """An echoed prompt's tokens are told of as the answer's are."""
    wanted = (asked["prompt_logprobs"], logprobs if asked.get("echo") else None)
    return max((k for k in wanted if k is not None), default=None)


def _max_tokens(asked: dict[str, Any]) -> int | None:
    older, newer = asked["max_tokens"], asked["max_completion_tokens"]
    if None not in (older, newer) and older != newer:
        raise bad(
            "max_completion_tokens",
            "max_tokens and max_completion_tokens mean the same and must not differ.",
            "invalid_value",
        )
    result: int | None = newer if older is None else older
    return result


def _keep(asked: dict[str, Any]) -> Keep | None:
    tokens = asked["truncate_prompt_tokens"]
    if tokens == 0:
        raise bad(
            "truncate_prompt_tokens", "truncate_prompt_tokens must leave a token, or be -1.", "out_of_range"
        )
    return None if tokens is None else Keep(tokens, asked["truncation_side"] == "left")


def _stream_options(asked: dict[str, Any]) -> dict[str, Any]:
    given = asked["stream_options"]
    if given is not None and not asked["stream"]:
        raise bad("stream_options", "stream_options needs stream to be true.", "invalid_value")
    return fields.read(given or {}, fields.STREAM_OPTIONS, "stream_options.")
