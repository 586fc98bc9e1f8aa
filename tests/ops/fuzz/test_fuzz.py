"""A short run of every part against real processes, and that each would see what it looks for."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pillion.ops.fuzz import http
from pillion.ops.fuzz.api import agreeing, short
from pillion.ops.fuzz.files import try_files
from pillion.ops.fuzz.findings import KEPT, Findings

PARTS = ("api", "http", "contracts", "files", "executor")


@pytest.mark.slow
def test_nothing_falls(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    output = tmp_path / "fuzz.json"
    command = [
        *(sys.executable, "-m", "pillion.ops.fuzz.main", "--seed", "11", "--seconds", "18"),
        *("--model", str(tiny_model("smollm2")), "--output", str(output), "--", "--threads", "1"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=175, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    raw = json.loads(output.read_text())
    assert raw["trouble"] == [] and tuple(raw["parts"]) == PARTS
    for part, found in raw["parts"].items():
        assert found["wrongs"] == 0 and sum(found["outcomes"].values()) > 8, part
    api = raw["parts"]["api"]["outcomes"]
    fine = sum(count for status, count in api.items() if status.startswith("2"))
    assert fine > 0.2 * sum(api.values()) and api["400"] > 0
    assert raw["parts"]["contracts"]["outcomes"]["served"] > 0
    assert {"submit", "run", "cancel", "beats", "out", "usage"} <= set(raw["parts"]["contracts"]["outcomes"])
    assert {"served", "result", "failed"} <= set(raw["parts"]["executor"]["outcomes"])
    assert {"gguf refused", "gguf read", "safetensors refused"} <= set(raw["parts"]["files"]["outcomes"])


async def test_a_server_that_fails_is_found() -> None:
    async def fails(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)
        writer.write(b"HTTP/1.1 500 Oh\r\nContent-Length: 2\r\n\r\nno")
        writer.close()

    server = await asyncio.start_server(fails, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    findings = await http.run(f"http://127.0.0.1:{port}", 1, 0.3)
    server.close()
    assert findings.wrongs > 5
    assert any(reason.startswith("500") for reason in findings.wrong)


def test_a_reader_that_raises_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pillion.modelfiles.sampling_defaults", lambda located: 1 / 0)
    findings = try_files(1, 1.0, tmp_path)
    assert findings.wrongs > 3
    assert all("ZeroDivisionError" in reason for reason in findings.wrong)
    assert len(findings.wrong) == 2, "each kind is told once"


def test_findings_are_counted_all_and_told_once_each() -> None:
    findings = Findings("x")
    for number in range(3 * KEPT):
        findings.blame(f"kind {number % (KEPT + 5)}", b"input")
    assert (findings.wrongs, len(findings.wrong), findings.inputs) == (3 * KEPT, KEPT, 3 * KEPT)


def test_bodies_are_made_short_and_agreeing() -> None:
    body = {"prompt": [[3.0, 99999.0]], "n": 500, "stream_options": {}, "max_tokens": None, "min_tokens": 9}
    assert agreeing(body) == {"prompt": [[3, 99999 % 250]], "n": 500}
    assert short({"prompt": "x", "n": 500}) == {"prompt": "x", "n": 1 + 500 % 3, "max_tokens": 4}
