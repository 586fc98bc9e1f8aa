"""Every entry of the table of fields: what is acted on, harmless and refused; nothing passes unseen."""

import json
import math
from typing import Any

import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as CompletionParams

from pillion.gateway.fields import CHAT, COMPLETION, FIELDS, GENERATE, STREAM_OPTIONS, TABLE, Form, read
from pillion.gateway.protocol import body, forms, values
from pillion.gateway.protocol.errors import ApiError
from pillion.gateway.protocol.request import Tools

MINIMAL: dict[Form, dict[str, Any]] = {
    Form.CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    Form.COMPLETION: {"prompt": "hi"},
    Form.TOKENIZE: {"prompt": "hi"},
    Form.DETOKENIZE: {"tokens": [1]},
}
PARSE: dict[Form, Any] = {
    Form.CHAT: forms.chat,
    Form.COMPLETION: forms.completion,
    Form.TOKENIZE: forms.tokenize,
    Form.DETOKENIZE: forms.detokenize,
}
NOT_BOOL = [1, 0, "true", [], {}]
NOT_INT = [True, 1.0, 1.5, "1", [], {}, 1 << 400, math.nan, math.inf]
NOT_NUMBER = [True, "1", [], {}, 1 << 2000, 1e30, math.nan, math.inf, -math.inf]
NOT_TEXT = [1, True, [], {}, 1.5, ""]

TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "of x", "parameters": {"type": "object"}, "strict": True},
}
DEEP: Any = json.loads("[" * 150 + "]" * 150)
WRONG_FUNCTIONS: list[Any] = [
    *({"name": name} for name in (None, 1, "", "a b", "x" * 65, "\u00fc")),
    {"parameters": {"a": DEEP}},
    {"description": 1}, {"parameters": [1]}, {"parameters": "x"}, {"strict": "yes"},
]  # fmt: skip

# name: (values that are taken, values that are not)
ACTED: dict[str, tuple[list[Any], list[Any]]] = {
    "model": (["demo"], NOT_TEXT),
    "messages": (
        [[{"role": "user", "content": "x"}]],
        [[], {}, "x", [1], [{}], [{"role": "x", "content": ""}]],
    ),
    "prompt": (["x"], [1, True, {}, 1.5]),
    "tokens": ([[], [5]], ["x", [True], [-1], [1 << 40], [1.0], ["a"]]),
    "add_generation_prompt": ([True, False], NOT_BOOL),
    "continue_final_message": ([False], NOT_BOOL),
    "chat_template_kwargs": ([{"a": 1}], [1, "a", [], True]),
    "add_special_tokens": ([True, False], NOT_BOOL),
    "parse_special": ([True, False], NOT_BOOL),
    "return_token_strs": ([True, False], NOT_BOOL),
    "truncate_prompt_tokens": ([-1, 1, 9000], [*NOT_INT, 0, -2]),
    "truncation_side": (["left", "right"], [1, True, [], {}, "", "middle"]),
    "max_tokens": ([1, 2000], [*NOT_INT, 0, -1]),
    "max_completion_tokens": ([1, 2000], [*NOT_INT, 0, -1]),
    "min_tokens": ([0, 5], [*NOT_INT, -1]),
    "n": ([1, 128], [*NOT_INT, 0, -1, 5000]),
    "best_of": ([1], [*NOT_INT, 0, 2]),
    "stop": (["a", ["a", "b"], []], [1, True, "", [""], [1], {}, ["x"] * 17, "x" * 1025]),
    "stop_token_ids": ([[], [7]], [7, "7", [True], [-1], [1.5], ["7"]]),
    "include_stop_str_in_output": ([True, False], NOT_BOOL),
    "ignore_eos": ([True, False], NOT_BOOL),
    "temperature": ([0, 0.0, 1e-5, 2, 1.5], [*NOT_NUMBER, -0.1, 2.1]),
    "top_p": ([1, 0.5, 1e-5], [*NOT_NUMBER, 0, 0.0, -1, 1.01]),
    "top_k": ([-1, 0, 40], [*NOT_INT, -2]),
    "min_p": ([0, 0.5, 1], [*NOT_NUMBER, -0.1, 1.1]),
    "frequency_penalty": ([-2, 2, 0.5], [*NOT_NUMBER, -2.1, 2.1]),
    "presence_penalty": ([-2, 2, 0.5], [*NOT_NUMBER, -2.1, 2.1]),
    "repetition_penalty": ([0.5, 1, 1.3], [*NOT_NUMBER, 0, -1]),
    "logit_bias": (
        [{}, {"5": 3}, {"7": -100.0}],
        [1, [], "x", {"a": 1}, {"-1": 1}, {"5": 101}, {"5": math.nan}, {"5": "1"}, {"5": True}, {"²": 1}],
    ),
    "seed": ([0, -1, (1 << 63) - 1, -(1 << 63)], [True, 1.0, "1", [], 1 << 63, math.nan]),
    "stream": ([True, False], NOT_BOOL),
    "stream_options": ([], [1, "x", [], True]),
    "top_logprobs": ([0], [*NOT_INT, -1, 21, 5]),
    "prompt_logprobs": ([0, 1, 20], [*NOT_INT, -1, 21]),
    "echo": ([True, False], NOT_BOOL),
    "skip_special_tokens": ([True, False], NOT_BOOL),
    "return_token_ids": ([True, False], NOT_BOOL),
    "return_tokens_as_token_ids": ([True, False], NOT_BOOL),
    "priority": ([-5, 0, 5], [True, 1.0, "1", 1 << 40]),
    "cache_salt": (["x"], NOT_TEXT),
    "request_id": (["x"], NOT_TEXT),
    "tools": (
        [
            [],
            [TOOL],
            [TOOL, {"type": "function", "function": {"name": "g.h-1", "description": "", "strict": None}}],
        ],
        [
            *(
                1,
                "x",
                {},
                [1],
                [{}],
                [TOOL, TOOL],
                [TOOL] * 129,
                [{"type": "custom", "custom": {"name": "x"}}],
            ),
            *([{"type": "function", "function": TOOL["function"] | wrong}] for wrong in WRONG_FUNCTIONS),
        ],
    ),
    "reasoning_effort": (["none", "minimal", "high", "max"], [1, True, "", "HIGH", [], {}]),
    "tool_choice": (
        ["none", "auto"],
        [
            "any",
            1,
            [],
            {},
            {"type": "function"},
            {"type": "allowed_tools"},
            {"type": "custom"},
            "required",
            *(
                {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}
                for mode, tools in (
                    ("none", [TOOL]),
                    ("auto", []),
                    ("auto", None),
                    ("auto", [{"type": "custom"}]),
                    ("auto", [1]),
                )
            ),
        ],
    ),
    "response_format": (
        [
            {"type": "text"},
            {"type": "json_object"},
            {"type": "json_object", "schema": {"type": "object"}},
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {}, "strict": True}},
            {"type": "json_schema", "json_schema": {"schema": {}, "description": None, "strict": None}},
        ],
        [
            *(1, "json", [], {}, {"type": "xml"}, {"type": None}),
            {"type": "json_schema"},
            {"type": "json_schema", "json_schema": {"name": "x"}},
            {"type": "json_schema", "json_schema": {"schema": True}},
            {"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}},
            {"type": "json_schema", "json_schema": {"schema": {}, "shema": {}}},
            {"type": "text", "schema": {}},
        ],
    ),
    "structured_outputs": (
        [
            {"json": {"type": "object"}},
            {"json": "{}", "whitespace_pattern": " "},
            {"regex": "a"},
            {"choice": ["a", "b"]},
            {"grammar": 'start: "a"'},
            {"json_object": True, "disable_any_whitespace": True},
            {"regex": "a", "json": None, "json_object": False},
        ],
        [
            *(1, [], "x", {}),
            {"json_object": False},
            {"json_object": 1},
            {"json": {}, "regex": "a"},
            {"structural_tag": "x"},
            {"json": {}, "whitespace_pattern": 1},
            {"json": {}, "disable_any_whitespace": "no"},
            {"choice": []},
        ],
    ),
    "guided_json": (
        [{}, "{}", {"type": "object"}],
        [1, [], "", "{", "[]", "x" * (1 << 17), {"a": "x" * (1 << 17)}],
    ),
    "guided_regex": (["a+"], [1, "", {}, "x" * ((1 << 17) + 1)]),
    "guided_choice": ([["a"], ["a", "b"]], ["a", [], [1], [""], ["x"] * 1001, ["x" * 1025]]),
    "guided_grammar": (['root ::= "a"', 'start: "a"'], [1, "", {}]),
    "guided_whitespace_pattern": ([], [1, "", {}, "x"]),
    "allowed_token_ids": ([[], [0, 5]], [1, [-1], ["x"], [True], [0] * 4097]),
    "bad_words": ([[], ["x", " y"]], ["x", [1], [""], ["x" * 257], ["x"] * 257]),
    "parallel_tool_calls": ([True, False], NOT_BOOL),
    "include_reasoning": ([True, False], NOT_BOOL),
}
LOGPROBS: dict[Form, tuple[list[Any], list[Any]]] = {
    CHAT: ([True, False], NOT_BOOL),
    COMPLETION: ([0, 1, 20], [*NOT_INT, -1, 21]),
}
HARMLESS: dict[str, list[Any]] = {
    "user": ["me", ""],
    "guided_decoding_backend": ["auto"],
    "safety_identifier": ["me"],
    "metadata": [{}, {"a": "b"}],
    "prompt_cache_key": ["x"],
    "prompt_cache_retention": ["24h"],
    "prompt_cache_options": [{}],
    "store": [False],
    "service_tier": ["auto", "default"],
    "verbosity": ["medium"],
    "spaces_between_special_tokens": [True],
    "functions": [[]],
    "function_call": ["none", "auto"],
    "modalities": [["text"]],
    "mm_processor_kwargs": [{}],
    "suffix": [""],
    "echo": [False],
    "logprob_token_ids": [[]],
    "documents": [[]],
    "logits_processors": [[]],
    "use_beam_search": [False],
    "length_penalty": [1, 1.0],
    "early_stopping": [False],
    "vllm_xargs": [{}],
    "nvext": [{}],
    "return_token_strs": [False],
}
REFUSED: list[Any] = [0, 1, "x", [1], {"type": "json_object"}, 2.5]
ENTRIES = [(form, field) for field in FIELDS for form in field.forms]


@pytest.mark.parametrize(("form", "field"), ENTRIES, ids=[f"{form.value}-{f.name}" for form, f in ENTRIES])
def test_every_entry(form: Form, field: Any) -> None:
    minimal = {} if form is Form.TOKENIZE and field.name == "messages" else MINIMAL[form]
    if not field.required and field.name not in ("prompt", "messages"):
        PARSE[form](minimal | {field.name: None})  # null is as good as absent
    if field.check is not None:
        good, wrong = LOGPROBS[form] if field.name == "logprobs" else ACTED[field.name]
    else:
        good = HARMLESS.get(field.name, [])
        wrong = [value for value in REFUSED if not field.harmless(value)]
    for value in good:
        PARSE[form](minimal | {field.name: value})
    assert wrong
    for value in wrong:
        with pytest.raises(ApiError) as refusal:
            PARSE[form](minimal | {field.name: value})
        assert refusal.value.status == 400, value
        assert (refusal.value.param or "").startswith(field.name), value
        assert field.name in refusal.value.message
        assert refusal.value.body()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("form", [CHAT, COMPLETION])
def test_what_changes_no_answer_has_its_type_all_the_same(form: Form) -> None:
    for name, value, message in (
        ("user", 5, "user must be a string."),
        ("metadata", "x", "metadata must be an object."),
        ("prompt_cache_key", [], "prompt_cache_key must be a string; see cache_salt."),
    ):
        with pytest.raises(ApiError) as refusal:
            PARSE[form](MINIMAL[form] | {name: value})
        assert (refusal.value.message, refusal.value.code) == (message, "invalid_type")
    with pytest.raises(ApiError) as refusal:
        PARSE[form](MINIMAL[form] | {"logprob_token_ids": [5]})
    assert refusal.value.code == "unsupported_parameter"


def test_the_tests_know_every_field() -> None:
    acted = {field.name for field in FIELDS if field.check is not None} - {"logprobs"}
    assert acted == set(ACTED)
    assert set(HARMLESS) <= {field.name for field in FIELDS if field.check is None}


@pytest.mark.parametrize(("form", "params"), [(CHAT, ChatParams), (COMPLETION, CompletionParams)])
def test_all_of_openais_fields_are_in_the_table(form: Form, params: Any) -> None:
    names = set(params.__annotations__)
    assert len(names) > 15
    assert names - set(TABLE[form]) == set()


@pytest.mark.parametrize("form", Form)
def test_unknown_fields_are_refused_and_the_nearest_is_named(form: Form) -> None:
    for name, meant in (("Model", "model"), ("modle", "model")):
        with pytest.raises(ApiError) as refusal:
            PARSE[form](MINIMAL[form] | {name: "x"})
        assert (refusal.value.status, refusal.value.param) == (400, name)
        assert f"Did you mean {meant!r}?" in refusal.value.message
    with pytest.raises(ApiError) as refusal:
        PARSE[form](MINIMAL[form] | {"zzqqy": 1})
    assert refusal.value.code == "unknown_parameter" and "mean" not in refusal.value.message


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("max_new_tokens", "max_tokens"),
        ("maxTokens", "max_tokens"),
        ("topP", "top_p"),
        ("stop_tokens", "stop_token_ids"),
    ],
)
def test_names_from_elsewhere(wrong: str, right: str) -> None:
    with pytest.raises(ApiError, match=right):
        forms.completion({"prompt": "x", wrong: 1})


def test_stream_options() -> None:
    stream = MINIMAL[CHAT] | {"stream": True}
    for name in STREAM_OPTIONS:
        with pytest.raises(ApiError) as refusal:
            forms.chat(stream | {"stream_options": {name: 1}})
        assert refusal.value.param == f"stream_options.{name}"
    with pytest.raises(ApiError) as refusal:
        forms.chat(stream | {"stream_options": {"include_usag": True}})
    assert refusal.value.param == "stream_options.include_usag" and "include_usage" in refusal.value.message
    with pytest.raises(ApiError, match="needs stream"):
        forms.chat(MINIMAL[CHAT] | {"stream_options": {"include_usage": True}})
    assert forms.chat(stream | {"stream_options": {"include_usage": True}}).output.include_usage
    assert not forms.chat(stream | {"stream_options": {}}).output.include_usage


def test_what_spans_fields() -> None:
    chat, completion = MINIMAL[CHAT], MINIMAL[COMPLETION]
    assert forms.chat(chat | {"max_tokens": 5, "max_completion_tokens": 5}).max_tokens == 5
    assert forms.completion(completion | {"max_completion_tokens": 7}).max_tokens == 7
    assert forms.completion(completion).max_tokens == 16 and forms.chat(chat).max_tokens is None
    assert forms.completion(completion | {"best_of": 3, "n": 3}).output.n == 3
    assert forms.chat(chat | {"logprobs": True}).output.logprobs == 0
    assert forms.chat(chat | {"logprobs": True, "top_logprobs": 4}).output.logprobs == 4
    assert forms.chat(chat).output.logprobs is None and forms.completion(completion).output.logprobs is None
    for wrong, param in (
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
        ({"max_tokens": 5, "min_tokens": 6}, "min_tokens"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"top_logprobs": 2}, "top_logprobs"),
    ):
        with pytest.raises(ApiError) as refusal:
            forms.chat(chat | wrong)
        assert refusal.value.param == param


def test_a_prompt_is_told_of_for_itself_or_where_it_is_echoed() -> None:
    def scored(**asked: Any) -> tuple[int | None, int | None]:
        output = forms.completion(MINIMAL[COMPLETION] | asked).output
        return output.scored, output.prompt_logprobs

    assert scored() == scored(echo=True) == scored(logprobs=2) == (None, None)
    assert scored(echo=True, logprobs=2) == (2, None)
    assert scored(prompt_logprobs=0) == (0, 0)
    assert scored(prompt_logprobs=1, echo=True, logprobs=3) == (3, 1)
    assert forms.chat(MINIMAL[CHAT] | {"prompt_logprobs": 4}).output.scored == 4
    with pytest.raises(ApiError, match="needs stream to be false") as refusal:
        forms.chat(MINIMAL[CHAT] | {"prompt_logprobs": 0, "stream": True})
    assert refusal.value.param == "prompt_logprobs"


def test_nothing_but_the_prompt_can_be_asked_for_where_that_is_echoed() -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        asked = forms.completion(MINIMAL[COMPLETION] | {name: 0, "echo": True})
        assert asked.output.only_prompt and asked.max_tokens == 0
        with pytest.raises(ApiError, match="with echo it may be 0") as refusal:
            forms.completion(MINIMAL[COMPLETION] | {name: 0})
        assert refusal.value.param == name
    assert not forms.completion(MINIMAL[COMPLETION] | {"max_tokens": 1, "echo": True}).output.only_prompt


def test_what_is_said_of_tools_together() -> None:
    chat: dict[str, Any] = MINIMAL[CHAT] | {"tools": [TOOL]}
    seen = {"type": "function", "function": {k: v for k, v in TOOL["function"].items() if k != "strict"}}
    asked = forms.chat(chat)
    assert asked.tools == Tools((TOOL,)) and asked.prompt.tools == (seen,), (
        "strict is not the model's to read"
    )
    assert forms.chat(chat | {"parallel_tool_calls": False}).tools == Tools((TOOL,), parallel=False)
    assert forms.chat(chat | {"tool_choice": "required"}).tools == Tools((TOOL,), required=True)
    named = {"type": "function", "function": {"name": "f"}}
    assert forms.chat(chat | {"tool_choice": named}).tools == Tools(
        (TOOL,), required=True, only=("f",), parallel=False
    )
    other = TOOL | {"function": {"name": "g"}}
    some = {"mode": "auto", "tools": [named]}
    both = chat | {"tools": [TOOL, other], "tool_choice": {"type": "allowed_tools", "allowed_tools": some}}
    assert forms.chat(both).tools == Tools((TOOL, other), only=("f",)), "the model is told of all"
    some["mode"] = "required"
    assert forms.chat(both).tools == Tools((TOOL, other), required=True, only=("f",))
    none = forms.chat(chat | {"tool_choice": "none"})
    assert none.tools is None and none.prompt.tools == (), "who may not call is not told what"
    assert forms.chat(MINIMAL[CHAT] | {"tool_choice": "auto"}).tools is None
    assert forms.tokenize(MINIMAL[CHAT] | {"tools": [TOOL]}).prompt.tools == (seen,)
    assert forms.chat(chat).output.show_thinking
    assert not forms.chat(chat | {"include_reasoning": False}).output.show_thinking
    named = {"type": "function", "function": {"name": "g"}}
    unknown = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named]}}
    for wrong in (
        MINIMAL[CHAT] | {"tool_choice": "required"},
        chat | {"tool_choice": named},
        chat | {"tool_choice": unknown},
    ):
        with pytest.raises(ApiError) as refusal:
            forms.chat(wrong)
        assert refusal.value.param == "tool_choice"


def test_what_a_model_said_before_is_as_templates_want_it() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"b": 1, "a": [2]}'}}
    for arguments in ('{"b": 1, "a": [2]}', {"b": 1, "a": [2]}):
        call["function"] = {"name": "f", "arguments": arguments}
        said = {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "hm"}
        result = {"role": "tool", "tool_call_id": "c", "content": "2"}
        prompt: Any = forms.chat({"messages": [*MINIMAL[CHAT]["messages"], said, result]}).prompt
        (_, message, after) = prompt.messages
        assert list(message["tool_calls"][0]["function"]["arguments"].items()) == [("b", 1), ("a", [2])]
        assert (message["content"], message["reasoning"], message["reasoning_content"]) == ("", "hm", "hm")
        assert after == result
    call["function"] = {"name": "f", "arguments": ""}
    prompt = forms.chat({"messages": [*MINIMAL[CHAT]["messages"], said]}).prompt
    assert prompt.messages[1]["tool_calls"][0]["function"]["arguments"] == {}


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ("", "prompt"),
        ([], "prompt"),
        ([""], "prompt"),
        ([[]], "prompt"),
        (["a", ""], "prompt"),
        ([[1], []], "prompt"),
        (["a", 1], "prompt"),
        ([1, "a"], "prompt"),
        ([[1], "a"], "prompt"),
        ([True], "prompt"),
        ([1, True], "prompt"),
        ([[True]], "prompt"),
        ([-1], "prompt"),
        ([1 << 40], "prompt"),
        ([1.0], "prompt"),
        ({}, "prompt"),
        (1, "prompt"),
        ([None], "prompt"),
        (None, "prompt"),
    ],
)
def test_prompts_that_are_none(prompt: Any, param: str) -> None:
    with pytest.raises(ApiError) as refusal:
        forms.completion({"prompt": prompt})
    assert refusal.value.status == 400 and (refusal.value.param or "").startswith(param)


def test_prompts_of_all_kinds() -> None:
    assert forms.completion({"prompt": "a"}).prompt.texts == ("a",)
    assert forms.completion({"prompt": ["a", "b"]}).prompt.texts == ("a", "b")
    assert forms.completion({"prompt": [1, 2]}).prompt.ids == ((1, 2),)
    assert forms.completion({"prompt": [[1], [2, 3]]}).prompt.ids == ((1,), (2, 3))


def test_unknown_keys_in_messages_are_ignored_and_counted() -> None:
    message = {"role": "assistant", "content": None, "refusal": None, "annotations": [], "audio": None}
    prompt: Any = forms.chat({"messages": [{"role": "user", "content": "x", "id": "1"}, message]}).prompt
    assert prompt.ignored_keys == 4
    assert prompt.messages == ({"role": "user", "content": "x"}, {"role": "assistant", "content": ""})
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    echoed = call | {"index": 0, "function": call["function"] | {"strict": True, "parsed": None}}
    part = {"type": "text", "text": "x", "annotations": [], "cache_control": {}}
    prompt = forms.chat(
        {
            "messages": [
                {"role": "user", "content": [part]},
                {"role": "assistant", "tool_calls": [echoed]},
            ]
        }
    ).prompt
    assert prompt.ignored_keys == 5
    call["function"] = {"name": "f", "arguments": {}}
    assert prompt.messages[1] == {"role": "assistant", "content": "", "tool_calls": [call]}


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "robot", "content": "x"}], "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": []}], "messages[0].content"),
        ([{"role": "assistant", "content": []}], "messages[0].content"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            "messages[0].content[0].type",
        ),
        ([{"role": "user", "content": [{"type": "text", "text": 5}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": "x"}, 5], "messages[1]"),
        ([{"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}], "messages[0].content[0].type"),
        ([{"role": "assistant", "content": [{"type": "refusal"}]}], "messages[0].content[0].refusal"),
        ([{"role": "assistant", "content": "x", "tool_calls": [5]}], "messages[0].tool_calls[0]"),
        *(
            (
                [{"role": "assistant", "tool_calls": [{"function": wrong}]}],
                f"messages[0].tool_calls[0].function{at}",
            )
            for wrong, at in (
                (None, ""),
                ({}, ".name"),
                ({"name": 5}, ".name"),
                ({"name": "f", "arguments": "{"}, ".arguments"),
                ({"name": "f", "arguments": "[1]"}, ".arguments"),
                ({"name": "f", "arguments": 5}, ".arguments"),
                ({"name": "f", "arguments": "[" * 100_000}, ".arguments"),
                ({"name": "f", "arguments": {"a": DEEP}}, ".arguments"),
            )
        ),
        ([{"role": "assistant", "content": "x", "reasoning": 5}], "messages[0].reasoning"),
        ([{"role": "user", "content": "x", "name": 5}], "messages[0].name"),
    ],
)
def test_messages_that_are_none(messages: Any, param: str) -> None:
    with pytest.raises(ApiError) as refusal:
        forms.chat({"messages": messages})
    assert (refusal.value.status, refusal.value.param) == (400, param)


@pytest.mark.parametrize(
    "key",
    [
        *("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "self"),
        *("bos_token", "eos_token", "pad_token", "unk_token", "raise_exception", "strftime_now"),
    ],
)
def test_what_a_template_gets_from_the_server_is_not_for_kwargs(key: str) -> None:
    for form in (Form.CHAT, Form.TOKENIZE):
        asked = {"messages": [{"role": "user", "content": "x"}]}
        with pytest.raises(ApiError) as refusal:
            PARSE[form](asked | {"chat_template_kwargs": {"enable_thinking": False, key: None}})
        assert (refusal.value.status, refusal.value.param) == (400, f"chat_template_kwargs.{key}")


def test_a_refusal_is_one_sentence_that_says_why() -> None:
    with pytest.raises(ApiError) as refusal:
        forms.chat(MINIMAL[CHAT] | {"functions": [{}]})
    assert refusal.value.message == "functions is refused: it is of an older kind; use tools."


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    prompt: Any = forms.chat({"messages": [{"role": "user", "content": parts}]}).prompt
    assert prompt.messages[0]["content"] == "a\nb"
    said = [parts[0], {"type": "refusal", "refusal": "no", "text": "x"}]
    prompt = forms.chat({"messages": [{"role": "assistant", "content": said}]}).prompt
    assert (prompt.messages[0]["content"], prompt.ignored_keys) == ("a\nno", 1)


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b"", None),
        (b"{", None),
        (b"[1]", None),
        (b"null", None),
        (b'"x"', None),
        (b"\xff\xfe{}", None),
        (b'{"a": "\xff"}', None),
        (b"[" * 200_000, None),
        (b'{"n": ' + b"1" * 5000 + b"}", None),
        (b'{"stop": "\\ud800"}', "stop"),
        (b'{"messages": [{"content": "a\\udfffb"}]}', "messages[0].content"),
        (b'{"tools": [{"function": {"name": "\\uDBFF"}}]}', "tools[0].function.name"),
        (b'{"metadata": {"\\ud800": 1}}', "metadata"),
    ],
)
def test_bodies_that_are_none(raw: bytes, param: str | None) -> None:
    with pytest.raises(ApiError) as refusal:
        body.parse(raw)
    assert (refusal.value.status, refusal.value.param) == (400, param)
    json.dumps(refusal.value.body()).encode()


def test_a_body_holds_so_many_arrays_and_objects_and_brackets_in_texts_are_none() -> None:
    full = b'{"a": [' + b"[], {}, " * (body.MOST_NESTED // 2 - 1) + b"1]}"
    assert len(body.parse(full)["a"]) == body.MOST_NESTED - 1
    text = "[{" * body.MOST_NESTED + '\\"[{'
    for encoding in ("utf-8", "utf-16"):
        assert body.parse(json.dumps({"a": text, "[": [text]}).encode(encoding)) == {"a": text, "[": [text]}
    with pytest.raises(ApiError) as refusal:
        body.parse(full.replace(b"1]", b"[]]"))
    assert (refusal.value.param, refusal.value.code) == (None, "too_many_items")


def test_variables_for_a_template_that_are_too_deep_are_told_as_theirs() -> None:
    deep: Any = 1
    for _ in range(values.MAX_DEPTH):
        deep = [deep]
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
    assert forms.chat(chat | {"chat_template_kwargs": {"a": deep[0]}})
    with pytest.raises(ApiError) as refusal:
        forms.chat(chat | {"chat_template_kwargs": {"a": deep}})
    assert (refusal.value.param, refusal.value.code) == ("chat_template_kwargs", "invalid_value")


def test_so_do_the_arguments_of_a_call() -> None:
    arguments = '{"a": [' + "[], " * body.MOST_NESTED + "1]}"
    call = {"function": {"name": "f", "arguments": arguments}}
    with pytest.raises(ApiError) as refusal:
        forms.chat({"messages": [{"role": "assistant", "tool_calls": [call]}]})
    where = "messages[0].tool_calls[0].function.arguments"
    assert (refusal.value.param, refusal.value.code) == (where, "too_many_items")


def test_pairs_of_surrogates_are_characters() -> None:
    assert body.parse(b'{"stop": "\\ud83d\\ude00"}') == {"stop": "\U0001f600"}


def test_a_table_of_its_own_reads_only_what_it_knows() -> None:
    assert read({}, STREAM_OPTIONS) == {"include_usage": False, "continuous_usage_stats": False}
    assert {form for field in FIELDS for form in field.forms} == set(Form) and len(GENERATE) == 2
