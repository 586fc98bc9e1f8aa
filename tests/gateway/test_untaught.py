"""Tools for a template that knows none: what they are, calls and results stand in the text."""

from pillion.gateway.calls import hermes
from pillion.gateway.untaught import as_text

TOOL = {"type": "function", "function": {"name": "wetter", "description": "für & <x>", "parameters": {}}}
CALLS = [
    {"id": "a", "type": "function", "function": {"name": "wetter", "arguments": {"ort": "Köln"}}},
    {"id": "b", "type": "function", "function": {"name": "wetter", "arguments": {}}},
]
CHAT = [
    {"role": "user", "content": "Und?"},
    {"role": "assistant", "content": "Moment.", "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "a", "content": "Regen"},
    {"role": "tool", "tool_call_id": "b", "content": "Sonne"},
    {"role": "assistant", "content": "Regen."},
]


def test_calls_and_results_are_written_out() -> None:
    plain = as_text(CHAT, (), hermes.write)
    assert [message["role"] for message in plain] == ["user", "assistant", "user", "assistant"]
    assert plain[1]["content"] == (
        'Moment.\n<tool_call>\n{"name": "wetter", "arguments": {"ort": "Köln"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "wetter", "arguments": {}}\n</tool_call>'
    )
    response = "<tool_response>\n{}\n</tool_response>"
    assert plain[2] == {"role": "user", "content": f"{response.format('Regen')}\n{response.format('Sonne')}"}
    assert (plain[0], plain[3]) == (CHAT[0], CHAT[4])


def test_tools_are_described_in_a_system_message() -> None:
    line = '{"name": "wetter", "description": "für & <x>", "parameters": {}}'
    plain = as_text(CHAT, [TOOL], hermes.write)
    assert plain[0]["role"] == "system" and f"\n{line}\n" in plain[0]["content"]
    assert hermes.write("NAME", '{"PARAMETER": "VALUE"}') in plain[0]["content"]
    assert plain[1:] == as_text(CHAT, (), hermes.write)
    behind = as_text([{"role": "system", "content": "Be brief."}, *CHAT], [TOOL], hermes.write)
    assert behind[0] == {"role": "system", "content": f"Be brief.\n\n{plain[0]['content']}"}
    assert behind[1:] == plain[1:]
