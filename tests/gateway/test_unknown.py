"""Unknown top-level fields where they are let pass."""

from typing import Any

from pillion.gateway.fields import CHAT, TOKENIZE
from pillion.gateway.unknown import TOLD, Unknown


async def test_a_gateway_that_warns_ignores_them_counts_them_and_tells_each_once(
    start: Any, caplog: Any
) -> None:
    stack = await start(unknown_fields="warn")
    body = {"prompt": "x", "stream": True, "max_token": 5, "stream_options": {"usage": True}}
    for _ in range(2):
        answer = stack.post("/v1/completions", body)
        request = await stack.driver.request()
        assert request.max_tokens == 16
        await stack.driver.play(request, [100])
        assert (await answer)[0] == 200
    assert stack.value("pillion_ignored_fields_total") == 4
    assert caplog.text.count("'max_token'") == caplog.text.count("'stream_options.usage'") == 1
    # What is known and not served is refused all the same.
    status, answered, _ = await stack.fetch("POST", "/v1/completions", json=body | {"suffix": "x"})
    assert (status, answered["error"]["param"]) == (400, "suffix")
    assert (await stack.fetch("POST", "/tokenize", json={"prompt": "x", "y": 1}))[0] == 200


def test_only_so_many_names_are_told(caplog: Any) -> None:
    counted: list[int] = []
    unknown = Unknown("warn", counted.append)
    names = [f"x{number}" for number in range(2 * TOLD)]
    for name in names:
        assert unknown.sift({"messages": [], name: 1}, CHAT) == {"messages": []}
    assert sum(counted) == 2 * TOLD and len(caplog.records) == TOLD
    assert unknown.sift({"prompt": "x", "a" * 10_000: 1}, TOKENIZE) == {"prompt": "x"}
    assert max(map(len, caplog.messages)) < 200


def test_a_gateway_that_rejects_leaves_them_for_the_table() -> None:
    body = {"messages": [], "x": 1}
    assert Unknown("reject", lambda count: None).sift(body, CHAT) is body
