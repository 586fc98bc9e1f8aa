"""An administrator's words, through all services of a real stack."""

import threading
from typing import Any

import httpx
import openai
import pytest

from pillion.ops.rig import Rig
from tests.e2e.conftest import ADMIN_KEY


@pytest.fixture
def ask(stack: Rig) -> Any:
    headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
    with httpx.Client(base_url=f"{stack.url}/admin/v1", headers=headers, timeout=60) as client:

        def call(method: str, path: str, body: Any = None) -> Any:
            answer = client.request(method, path, json=body)
            assert answer.status_code in (200, 202), answer.text
            return answer.json()

        yield call


def test_a_drained_replica_goes_on_with_what_it_runs_and_takes_no_more(stack: Rig, ask: Any) -> None:
    client = openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0, timeout=60)
    running = client.completions.create(
        model="demo", prompt="Once", max_tokens=3000, stream=True, extra_body={"ignore_eos": True}
    )
    next(running)
    assert [row["replica"] for row in ask("GET", "/requests")["data"] if row["max_tokens"] == 3000] == ["0"]
    drained = ask("PUT", "/drains/0")
    assert (drained["state"], drained["running"] >= 1) == ("draining", True)
    with pytest.raises(openai.InternalServerError) as refused:
        client.completions.create(model="demo", prompt="x", max_tokens=1)
    assert (refused.value.status_code, refused.value.code) == (503, "draining")
    known = ask("GET", "/replicas")["data"][0]["steps"]
    while ask("GET", "/replicas")["data"][0]["steps"] < known + 5:
        assert next(running).choices[0].finish_reason is None
    running.close()
    assert ask("DELETE", "/drains/0")["state"] == "ready"
    assert client.completions.create(model="demo", prompt="x", max_tokens=1).choices[0].text


def test_a_request_is_cancelled_whosesoever_it_is(stack: Rig, ask: Any) -> None:
    client = openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0, timeout=60)
    ended: list[str | None] = []

    def wait() -> None:
        with pytest.raises(openai.APIStatusError) as error:
            client.completions.create(
                model="demo", prompt="x", max_tokens=2000, extra_body={"ignore_eos": True}
            )
        ended.append(error.value.code)

    waiting = threading.Thread(target=wait)
    waiting.start()
    rows: list[Any] = []
    while not rows:
        assert waiting.is_alive()
        rows = [row for row in ask("GET", "/requests")["data"] if row["max_tokens"] == 2000]
    ask("DELETE", f"/requests/{rows[0]['id']}")
    waiting.join(60)
    assert ended == ["cancelled"]


def test_the_prefix_cache_is_emptied_and_steps_are_bound(stack: Rig, ask: Any) -> None:
    client = openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0, timeout=60)

    def cached() -> int:
        answer = client.completions.create(model="demo", prompt="one two three " * 40, max_tokens=1)
        assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens or 0

    cached()
    assert cached() > 50
    ask("DELETE", "/prefixes/0")
    assert cached() == 0
    (before,) = ask("GET", "/replicas")["data"]
    after = ask("PUT", "/budgets/0", {"max_num_batched_tokens": 32, "slo_tbt": 0.3})
    assert (after["max_num_batched_tokens"], after["slo_tbt"]) == (32, 0.3)
    assert cached() > 50
    restored = ask("DELETE", "/budgets/0")
    for key in ("max_num_batched_tokens", "slo_tbt"):
        assert restored[key] == before[key] != after[key]
