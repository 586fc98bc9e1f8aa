"""How a chat template is told how much to reason."""

import pytest

from pillion.gateway import thinking
from pillion.gateway.protocol.errors import ApiError

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
