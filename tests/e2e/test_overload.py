"""Refusals as a client sees them, and the goodput command on a real stack."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx


def test_a_limit_is_a_429_with_retry_after_and_a_code(start_stack: Any):
    running = start_stack("--tenant-rpm", "2", "--slo-ttft", "60")
    running.wait_line("ready after")
    with httpx.Client(base_url=running.url, timeout=60) as client:

        def ask(stream: bool) -> httpx.Response:
            body = {"prompt": [5, 6, 7], "max_tokens": 2, "stream": stream}
            return client.post("/v1/completions", json=body)

        assert [ask(False).status_code, ask(True).status_code] == [200, 200]
        for stream in (False, True):
            refused = ask(stream)
            assert refused.status_code == 429
            error = refused.json()["error"]
            assert (error["code"], error["type"]) == ("tenant_rpm", "rate_limit_error")
            assert "2 requests a minute" in error["message"]
            assert 1 <= int(refused.headers["Retry-After"]) <= 30
        metrics = client.get("/metrics").text
        assert 'pillion_slo_requests_total{met="true",target="ttft"} 2.0' in metrics


def test_goodput_is_measured_and_drawn(stack: Any, tmp_path: Path):
    raw, picture = tmp_path / "goodput.json", tmp_path / "goodput.svg"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pillion.ops.bench.goodput", "--url", stack.url, "--seconds", "2"),
            *("--times", "0.5", "--times", "1", "--streams", "3", "--ttft", "60", "--tbt", "60"),
            *("--prompt", "10", "20", "--answer", "4", "6", "--seed", "3"),
            *("--output", str(raw), "--plot", str(picture)),
        ],
        capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(raw.read_text())
    assert result["capacity"] > 0
    assert [point["times_capacity"] for point in result["points"]] == [0.5, 1.0]
    for point in result["points"]:
        # Nobody is refused, and with such targets all are good.
        assert point["results"] == ({"finished": point["sent"]} if point["sent"] else {})
        assert point["good"] == point["sent"] == len(point["requests"])
    assert sum(point["sent"] for point in result["points"]) > 0
    assert picture.read_text().startswith("<svg")
