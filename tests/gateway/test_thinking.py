"""How a chat template is told how much to reason."""

import pytest

from pillion.gateway import thinking
from pillion.gateway.model import Model
from pillion.gateway.protocol import forms
from pillion.gateway.protocol.errors import ApiError
from pillion.gateway.templates import ChatTemplate

LEVELS, SWITCH, BOTH = (
    "{{ reasoning_effort }}",
    "{% if enable_thinking is false %}",
    "{{ enable_thinking, reasoning_effort }}",
)


@pytest.mark.parametrize(
    ("template", "effort", "told"),
    [
        (LEVELS, "high", {"reasoning_effort": "high"}),
        (LEVELS, "none", {"reasoning_effort": "none"}),
        (SWITCH, "none", {"enable_thinking": False}),
        (SWITCH, "low", {"enable_thinking": True}),
        (BOTH, "none", {"reasoning_effort": "none", "enable_thinking": False}),
    ],
)
def test_in_what_the_template_knows(template: str, effort: str, told: dict[str, object]) -> None:
    assert thinking.variables(effort, template, thinks=True) == told


def test_what_no_template_is_told_is_refused() -> None:
    assert thinking.variables("none", "{{ messages }}", thinks=False) == {}, "it does not reason anyhow"
    for effort, thinks in (("none", True), ("medium", False), ("medium", True)):
        with pytest.raises(ApiError) as refusal:
            thinking.variables(effort, "{{ my_reasoning_efforts }}", thinks=thinks)
        error = refusal.value
        assert (error.status, error.param, error.code) == (400, "reasoning_effort", "unsupported_parameter")


def test_a_chat_has_it_in_its_prompt(demo_model: Model) -> None:
    tokenizer = demo_model.tokenizer
    template = ChatTemplate(
        {"default": "{{ enable_thinking }} {{ reasoning_effort }}"}, tokenizer.special, tokenizer.guard
    )
    model = Model("m", tokenizer, template, demo_model.defaults, located=demo_model.located)
    chat = {"messages": [{"role": "user", "content": "x"}], "reasoning_effort": "none"}
    kwargs = {"chat_template_kwargs": {"enable_thinking": True}}
    for body, text in ((chat, "False none"), (chat | kwargs, "True none")):
        (tokens,) = model.encode(forms.chat(body).prompt)
        assert tokenizer.decode(tokens, skip_special=False) == text, (
            "what is said closer to the template counts"
        )
