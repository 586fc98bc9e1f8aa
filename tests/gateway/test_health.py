"""Readiness follows the replicas' heartbeats."""

from typing import Any

import pytest

from pillion.contracts.entries import Facts, Heartbeat
from pillion.gateway import health
from pillion.gateway.health import FORGOTTEN, FRESH, STALLED, Replicas


def facts(model: str = "demo", length: int = 1000) -> Facts:
    return Facts(
        model=model, fingerprint="f", max_model_len=length, vocab_size=320, end_tokens=(2,), block_size=16,
        num_blocks=101, max_num_seqs=8, max_step_tokens=512, tile=16, dtype="float32", backend="torch",
    )  # fmt: skip


def beat(replica: str = "0", epoch: int = 1, state: str = "ready", **more: Any) -> Heartbeat:
    return Heartbeat(replica, epoch, state, **{"facts": facts()} | more)


@pytest.mark.parametrize(
    ("beats", "age", "reason"),
    [
        ([], 0, "no_replica"),
        ([beat()], 0, ""),
        ([beat()], FRESH + 0.1, "silent"),
        ([beat(state="unready", reason="no executor")], 0, "unready"),
        ([beat(state="draining")], 0, "draining"),
        ([beat(stalled=STALLED + 1)], 0, "stalled"),
        ([beat(stalled=STALLED - 1)], 0, ""),
        ([beat(facts=None)], 0, "unready"),
        ([beat(facts=facts("other"))], 0, "no_replica"),
        ([beat(state="draining"), beat("1")], 0, ""),
        ([beat(state="draining"), beat("1", state="unready")], 0, "unready"),
        ([beat(epoch=2, state="unready"), beat(epoch=1)], 0, "unready"),
        ([beat(epoch=1, state="unready"), beat(epoch=2)], 0, ""),
    ],
)
def test_the_verdict(beats: list[Heartbeat], age: float, reason: str) -> None:
    replicas = Replicas()
    for each in beats:
        replicas.heard(each, 10.0)
    verdict = replicas.verdict("demo", 10.0 + age)
    assert (verdict.ready, verdict.reason) == (not reason, reason)
    assert bool(verdict.message) is bool(reason)


def test_models_are_the_union_and_outlive_their_executor() -> None:
    replicas = Replicas()
    replicas.heard(beat("0", facts=facts(length=500)), 0)
    replicas.heard(beat("1", facts=facts(length=900)), 0)
    replicas.heard(beat("2", facts=facts("other")), 0)
    replicas.heard(beat("1", state="unready", facts=None), 1)
    assert {name: f.max_model_len for name, f in replicas.models().items()} == {"demo": 900, "other": 1000}


def test_who_is_gone_is_forgotten_once_others_have_spoken_for_long() -> None:
    replicas = Replicas()
    gone, lives = beat("gone", facts=facts("other")), beat("lives")
    replicas.heard(gone, 0.0)
    for now in (0.0, FORGOTTEN):
        replicas.heard(lives, now)
        assert [one["replica"] for one in replicas.describe(now)] == ["gone", "lives"]
    assert replicas.verdict("other", FORGOTTEN).reason == "silent"
    replicas.heard(lives, FORGOTTEN + 1)
    assert [one["replica"] for one in replicas.describe(FORGOTTEN + 1)] == ["lives"]
    assert set(replicas.models()) == {"demo"}


def test_of_too_many_the_longest_silent_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "MOST", 3)
    replicas = Replicas()
    for now, name in enumerate("abcad"):
        replicas.heard(beat(name), float(now))
    assert [one["replica"] for one in replicas.describe(5.0)] == ["a", "c", "d"]


def test_what_a_replica_said_before_is_given() -> None:
    replicas = Replicas()
    first, second = beat(epoch=2, generation="x"), beat(epoch=2, generation="y")
    assert [replicas.heard(each, 0.0) for each in (first, second)] == [None, first]
    assert replicas.heard(beat(epoch=1), 0.0) is None
    assert replicas.heard(first, 0.0) == second


async def test_readiness_over_http(start: Any, until: Any) -> None:
    stack = await start(ready=False)
    body = {"prompt": "x"}
    for path in ("/health", "/health/ready"):
        status, answer, headers = await stack.fetch("GET", path)
        assert (status, answer["reason"]) == (503, "no_replica") and headers["Retry-After"]
    status, answer, headers = await stack.fetch("POST", "/v1/completions", json=body)
    assert (status, answer["error"]["code"], headers["Retry-After"]) == (503, "no_replica", "2")
    while not stack.gateway.state.verdict().ready:
        await stack.driver.tell()
    assert (await stack.fetch("GET", "/health/ready"))[0] == 200
    for change, reason in (
        ({"state": "unready", "reason": "executor away"}, "unready"),
        ({"state": "ready", "stalled": 60.0}, "stalled"),
    ):
        await stack.driver.tell(**change)
        await until(lambda wanted=reason: stack.gateway.state.verdict().reason == wanted)
        status, answer, _ = await stack.fetch("GET", "/health/ready")
        assert (status, answer["reason"]) == (503, reason)
        assert answer["replicas"][0]["replica"] == "0"
        assert (await stack.fetch("POST", "/v1/completions", json=body))[0] == 503
        assert (await stack.fetch("GET", "/health/live"))[0] == 200
    await stack.driver.tell(state="ready", stalled=0.0)
    await until(lambda: stack.gateway.state.verdict().ready)
    stack.driver.silent()
    await until(lambda: stack.gateway.state.verdict().reason == "silent", 10)
