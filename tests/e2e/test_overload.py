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
    picture = tmp_path / "goodput.svg"

    def run(*words: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", *words], capture_output=True, text=True, timeout=170, check=False
        )
        assert done.returncode == 0, done.stderr

    run(
        *("pillion.ops", "bench", "traffic", "--url", stack.url, "--lengths", "chats", "--longest", "30"),
        *("--rate", "2", "--rate", "4", "--requests", "4", "--ttft", "60", "--tbt", "60", "--seed", "3"),
        *("--output", str(tmp_path / "goodput")),
    )
    runs = json.loads((tmp_path / "goodput.json").read_text())["raw"]["runs"]
    assert [each["name"] for each in runs] == ["2/s", "4/s"]
    for each in runs:
        # Nobody is refused, and with such targets all are good.
        (told,) = each["repeats"]
        assert told["results"] == {"finished": 4} and told["good"] == told["sent"] == 4
    run(
        *("pillion.ops.report.picture", str(tmp_path / "goodput"), "Goodput against offered load"),
        str(picture),
    )
    assert picture.read_text().startswith("<svg")
