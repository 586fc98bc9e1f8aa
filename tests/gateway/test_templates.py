# ruff: noqa: E501 - lines of templates are what they are
"""Chat templates against `transformers`' apply_chat_template, and what they may not do."""

import json
from datetime import datetime

import pytest

from pillion.gateway import templates
from pillion.gateway.guard import Guard
from pillion.gateway.protocol.errors import bad
from pillion.gateway.templates import ChatTemplate, TemplateError
from pillion.gateway.tokenizer import load_tokenizer
from pillion.modelfiles import SpecialTokens, chat_templates

LLAMA = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\nToday: " + date_string + "\n" + system_message + "<|eot_id|>" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}{{- "\n" }}
    {%- endfor %}
{%- endif %}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""
QWEN = """{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- if message.role == "user" and message.content is string and not message.content.startswith('<tool') %}
        {%- set ns.last = messages|length - 1 - loop.index0 %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- if tools %}{{- '<|im_start|>system\n# Tools\n' }}{%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}
{{- '<|im_end|>\n' }}{%- endif %}
{% for message in messages %}
    {% if message.role == "assistant" %}
        {%- generation %}{{- '<|im_start|>assistant\n' + message.content.split('</think>')[-1].lstrip('\n') }}{% endgeneration %}
    {% else %}
{{- '<|im_start|>' + message.role + '\n' + message.content }}
    {% endif %}
{{- '<|im_end|>\n' }}
{% endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}
"""
MISTRAL = """{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
{% else %}{{ message['content'] + eos_token }}{% endif %}
{% endfor %}"""

CHAT = [
    {"role": "user", "content": "  Hello — 你好 <b>&amp;</b> 'quoted' \n"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi 👋"},
    {"role": "user", "content": "and now?"},
]
SYSTEM = [{"role": "system", "content": " Be brief. "}, *CHAT]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "wetter", "description": "für <Orte> & 天気", "parameters": {"a": [1, None]}},
    }
]
SPECIAL = SpecialTokens(bos="<|im_start|>", eos="<|im_end|>", pad="<|im_end|>", unk="<|endoftext|>")


@pytest.fixture
def reference(demo_reference_tokenizer):
    return demo_reference_tokenizer


def template(source: str, **kwargs) -> ChatTemplate:
    return ChatTemplate({"default": source}, SPECIAL, Guard(()), **kwargs)


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("messages", [CHAT, SYSTEM, CHAT[:1]])
@pytest.mark.parametrize("source", ["demo", LLAMA, QWEN, MISTRAL])
@pytest.mark.parametrize("kwargs", [{}, {"enable_thinking": False, "date_string": "heute"}])
def test_renders_as_transformers(demo, reference, source, messages, tools, prompt, kwargs):
    source = chat_templates(demo)["default"] if source == "demo" else source
    arguments = {"tools": tools, "add_generation_prompt": prompt}
    if source == MISTRAL and messages is SYSTEM:
        with pytest.raises(TemplateError, match="Roles must alternate"):
            template(source).render(messages, **arguments)
        return
    expected = reference.apply_chat_template(
        messages, chat_template=source, tokenize=False, **arguments, **kwargs
    )
    assert template(source).render(messages, kwargs=kwargs, **arguments) == expected
    assert len(expected) > 30


@pytest.mark.parametrize(
    "content", ["The answer", "The answer is ", "  spaced", [{"type": "text", "text": "a "}]]
)
@pytest.mark.parametrize("source", ["{{ m }}", "{{ m | trim }}"])
def test_goes_on_where_transformers_goes_on(reference, content, source):
    inner = "(message.content if message.content is string else message.content[0].text)"
    source = (
        "{% for message in messages %}<|im_start|>" + source.replace("m", inner, 1) + "<|im_end|>{% endfor %}"
    )
    messages = [CHAT[0], {"role": "assistant", "content": content}]
    expected = reference.apply_chat_template(
        messages, chat_template=source, tokenize=False, continue_final_message=True
    )
    rendered = template(source).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert rendered == expected
    assert not rendered.endswith("<|im_end|>")
    assert messages[1]["content"] == content


def test_the_demo_chat_has_transformers_ids(demo, reference):
    tokenizer = load_tokenizer(demo)
    chat = ChatTemplate(chat_templates(demo), tokenizer.special, tokenizer.guard)
    ids = tokenizer.encode_chat(chat.render(CHAT))
    assert ids == reference.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    assert ids.count(1) == 5


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('no such role') }}", "no such role"),
        ("{{ messages[7].content.x }}", "undefined|no element"),
        ("{{ messages[0].content + 1 }}", "failed on the messages"),
        ("{{ messages[0].content.__class__.__mro__ }}", "unsafe|refused"),
        ("{{ messages.append(1) }}", "refused"),
        ("{{ 1 / 0 }}", "failed on the messages"),
        ("{% for a in range(1000000) %}x{% endfor %}", "refused|failed"),
        ("{% for a in range(9999) %}{{ messages[0].content * 4000 }}{% endfor %}", "longer than"),
    ],
)
def test_what_a_template_may_not_do_is_the_clients_error(source, message):
    with pytest.raises(TemplateError, match=message):
        template(source).render(CHAT)


def test_a_long_chat_is_bounded_before_it_is_joined(monkeypatch):
    monkeypatch.setattr(templates, "MAX_CHARACTERS", 1000)
    source = "{% for message in messages %}{{ message.content }}{% endfor %}"
    assert len(template(source).render([{"role": "user", "content": "x" * 1000}])) == 1000
    with pytest.raises(TemplateError, match="longer than 1000"):
        template(source).render([{"role": "user", "content": "x" * 1001}])


def test_no_template_and_no_jinja_say_what_to_do():
    with pytest.raises(TemplateError, match="--chat-template"):
        ChatTemplate({}, SPECIAL, Guard(())).render(CHAT)
    with pytest.raises(TemplateError, match="line 2"):
        template("\n{% if %}")


def test_the_template_for_tools_is_taken_with_tools():
    both = ChatTemplate({"default": "plain", "tool_use": "tools"}, SPECIAL, Guard(()))
    assert (both.render(CHAT), both.render(CHAT, tools=TOOLS)) == ("plain", "tools")


def test_the_date_is_the_given_clocks():
    dated = template("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2026, 2, 3))
    assert dated.render(CHAT) == "03 Feb 2026"


def test_nulls_in_messages_are_absent():
    source = (
        "{% for m in messages %}{% if m.tool_calls is defined %}calls{% endif %}{{ m.content }}{% endfor %}"
    )
    assert template(source).render([{"role": "assistant", "content": "a", "tool_calls": None}]) == "a"


def test_continuing_needs_text_and_no_prompt():
    source = "{% for m in messages %}{{ m.content }}{% endfor %}"
    for messages in ([], [{"role": "assistant"}], [{"role": "assistant", "content": [{"type": "image"}]}]):
        with pytest.raises(TemplateError, match="last message"):
            template(source).render(messages, add_generation_prompt=False, continue_final_message=True)
    with pytest.raises(TemplateError, match="exclude each other"):
        template(source).render(CHAT, continue_final_message=True)
    with pytest.raises(TemplateError, match="does not write"):
        template("nothing").render(CHAT, add_generation_prompt=False, continue_final_message=True)


def test_what_is_nested_too_deeply_is_the_clients_error():
    content: list = []
    for _ in range(100_000):
        content = [content]
    with pytest.raises(TemplateError, match="nested too deeply"):
        template("x").render([{"role": "user", "content": content}])


def test_an_error_repeats_no_long_text():
    text = "secret " * 10_000
    for source in ("{{ raise_exception(messages[0].content) }}", "{{ {}[messages[0].content].x }}"):
        with pytest.raises(TemplateError) as caught:
            template(source).render([{"role": "user", "content": text}])
        error = bad(text, f"messages: {caught.value}.")
        assert len(error.message) < 700 and len(error.param) < 200
        assert len(json.dumps(error.body())) < 1000
