"""What a real stack tells of requests that were slow for a reason, and a recording of it all."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from pillion.modelfiles import Located
from pillion.ops.cli import main
from pillion.ops.report import read
from pillion.ops.rig import Rig


class Client:
    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx.Client(base_url=url, timeout=60)

    def stream(self, prompt: list[int], tokens: int) -> Any:
        body = {"prompt": prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True}
        return self.http.stream("POST", "/v1/completions", json=body)

    def whole(self, prompt: list[int], tokens: int) -> str:
        body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
        answer = self.http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    def explained(self, identity: str, done: Callable[[Any], Any] = bool) -> Any:
        """The explanation, once it is as it must be: the gateway's part comes a moment after the end."""
        deadline = time.monotonic() + 30
        while True:
            answer = self.http.get(f"/v1/requests/{identity}/explain")
            assert answer.status_code == 200, answer.text
            told = answer.json()
            if done(told):
                return told
            assert time.monotonic() < deadline, told
            time.sleep(0.02)


def delivered(told: Any) -> bool:
    return told["status"] == "finished" and told["worst_gap"]["parts"][-1]["what"] == "delivery"


def adds_up(told: Any) -> None:
    for whole in (told["ttft"], told["worst_gap"]):
        assert sum(part["seconds"] for part in whole["parts"]) == pytest.approx(whole["seconds"], abs=0.002)


@pytest.fixture
def stack(demo: Located, tmp_path: Path) -> Iterator[Rig]:
    """Steps without a target, a pool for two short texts, and a recording."""
    running = Rig(
        tmp_path / "s",
        *("--num-kv-blocks", "100", "--block-size", "16", "--max-num-batched-tokens", "2048"),
        *("--record", str(tmp_path / "records"), "--multi-step-seconds", "0"),
    )
    running.wait_line("ready after")
    yield running
    running.end(signal.SIGKILL)


def test_a_long_prompt_and_a_preemption_are_named(stack: Rig, tmp_path: Path) -> None:
    client = Client(stack.url)
    draw = iter(range(3, 100_000))

    def prompt(length: int) -> list[int]:
        return [3 + next(draw) % 300 for _ in range(length)]

    # A stream, and a long prompt that is computed whole beside it.
    with client.stream(prompt(20), 60) as stream:
        lines = stream.iter_lines()
        for _ in range(10):
            next(lines)
        identity = stream.headers["x-request-id"]
        live = client.explained(identity)
        assert (live["status"], live["replica"]) == ("running", "0")
        assert live["ttft"]["parts"][-1]["what"] == "delivery"
        long = client.whole(prompt(1000), 1)
        for _ in lines:
            pass
    told = client.explained(identity, delivered)
    adds_up(told)
    gap = told["worst_gap"]
    widest = max(gap["steps"], key=lambda step: step["seconds"])
    assert widest["chunk_tokens"] == [1000] and widest["decodes"] == 1
    assert f"step {widest['step']} took" in gap["why"]
    assert "1 decode and a chunk of 1000 tokens" in gap["why"]
    other = client.explained(long)
    assert other["prefill"]["chunks"][0]["step"] == widest["step"]
    assert [step["own_tokens"] for step in other["prefill"]["chunks"]] == [1000]
    page = ["--report", str(tmp_path / "slow")]
    shown = CliRunner().invoke(main, ["explain", f"cmpl-{identity}", "--url", stack.url, *page])
    assert shown.exit_code == 0, shown.output
    drawn = {plot.title: plot for plot in read(tmp_path / "slow").plots}
    assert (
        f"step {widest['step']}: 1 decode and 1000 prompt tokens"
        in drawn["Steps in the longest gap"].series[0].labels
    )  # type: ignore[union-attr]
    assert sum(span["gaps"] for span in told["replica_spans"]) == 59
    assert max(span["longest_seconds"] for span in told["replica_spans"]) >= widest["seconds"] - 0.01
    assert f"before token {gap['position']} of choice 0: step {widest['step']} took" in shown.output
    assert str(max(widest["chunk_tokens"])) in shown.output

    # Two that do not fit together to their ends.
    with client.stream(prompt(700), 130) as first, client.stream(prompt(700), 130) as second:
        names = [first.headers["x-request-id"], second.headers["x-request-id"]]
        for one in (first, second):
            for _ in one.iter_lines():
                pass
    both = [client.explained(name, delivered) for name in names]
    assert sum(told["preemptions"] for told in both) >= 1
    victim = max(both, key=lambda told: told["preemptions"])
    adds_up(victim)
    assert victim["recomputed_tokens"] > 0
    assert "preempted" in victim["worst_gap"]["why"]
    assert {"preempted", "prefill anew"} <= {part["what"] for part in victim["worst_gap"]["parts"]}
    missing = client.http.get(f"/v1/requests/{'0' * 32}/explain")
    assert missing.status_code == 404

    assert stack.end() == 0
    (recording,) = (tmp_path / "records").iterdir()
    replayed = CliRunner().invoke(main, ["replay", str(recording), "--json"])
    assert replayed.exit_code == 0, replayed.output
    seen = json.loads(replayed.stdout)
    assert (seen["requests"], seen["end"]) == (4, "the scheduler ended")
    assert seen["preemptions"] == sum(told["preemptions"] for told in both)
