"""The environment of `ops/clients`: pinned, apart from ours, and installed once."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from pillion.ops.clients import report
from pillion.ops.clients.environment import NODE_PACKAGE, ROOT, Environment, InstallError, pinned
from pillion.ops.clients.main import CLIENTS, PACKAGES, SCRIPTS, Target
from pillion.ops.clients.report import Result

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_all_of_it_is_pinned_and_none_of_it_comes_with_dev() -> None:
    assert all(re.fullmatch(r"[a-z-]+==[0-9.]+", each) for each in EXTRAS["clients"])
    assert re.fullmatch(r"openai@[0-9.]+", NODE_PACKAGE)
    assert set(EXTRAS["clients"]) & set(EXTRAS["executor"]) == {"torch==2.13.0"}  # else a CUDA build comes
    assert not any("clients" in each for name, extra in EXTRAS.items() for each in extra)


def test_what_is_there_is_not_installed_again(tmp_path: Path) -> None:
    environment = Environment(tmp_path)
    (tmp_path / ".has").write_text("\n".join([*EXTRAS["clients"], NODE_PACKAGE]))
    environment.prepare(node=True)
    assert [path.name for path in tmp_path.iterdir()] == [".has"]


def test_what_cannot_be_installed_is_told(tmp_path: Path) -> None:
    environment = Environment(tmp_path)
    environment.python.parent.mkdir()
    environment.python.symlink_to("/bin/false")
    with pytest.raises(InstallError, match="pip install"):
        environment.prepare(node=False)
    assert not (tmp_path / ".has").exists()


def test_every_client_has_its_command_and_every_script_its_client(tmp_path: Path) -> None:
    at = Target("http://h:1", "m", Environment(tmp_path), tmp_path / "tokenizer")
    words = [word for command in CLIENTS.values() for word in command(at)]
    used = {Path(word).name for word in words if Path(word).suffix in (".py", ".mjs")}
    assert used == {path.name for path in SCRIPTS.iterdir() if path.is_file()}
    assert sum("http://h:1" in word for word in words) == len(CLIENTS)


def test_what_load_generators_report_is_read(tmp_path: Path) -> None:
    """Of each what it measured, in its own form, comes in one form."""
    spread = {"successful": {"mean": 2.504, "percentiles": {"p50": 40.04, "p99": 80.0}}}
    names = (
        "requests_per_second", "output_tokens_per_second", "time_to_first_token_ms", "inter_token_latency_ms"
    )  # fmt: skip
    totals = {"successful": 25, "errored": 1, "incomplete": 4}
    metrics = {"request_totals": totals, **dict.fromkeys(names, spread)}
    (tmp_path / report.GUIDELLM).write_text(json.dumps({"benchmarks": [{"metrics": metrics}]}))
    times = {"p50": 40.04, "p99": 80.0}
    (tmp_path / report.AIPERF).parent.mkdir()
    (tmp_path / report.AIPERF).write_text(json.dumps({
        "request_count": {"avg": 25.0}, "error_summary": [{"count": 1}],
        "request_throughput": {"avg": 2.504}, "output_token_throughput": {"avg": 2.504},
        "time_to_first_token": times, "inter_token_latency": times,
    }))  # fmt: skip
    told = {
        "ok": 25, "errors": 1, "requests_per_second": 2.5, "output_tokens_per_second": 2.5,
        "ttft_ms": {"p50": 40.0, "p99": 80.0}, "itl_ms": {"p50": 40.0, "p99": 80.0},
    }  # fmt: skip
    assert report.measured("guidellm", tmp_path) == report.measured("aiperf", tmp_path) == told
    assert report.measured("litellm", tmp_path) == {}
    with pytest.raises(OSError, match="guidellm"):
        report.measured("guidellm", tmp_path / "elsewhere")


def test_a_result_tells_what_it_has() -> None:
    assert Result("x==1", ["chat"], 4, 1.26).raw() == {
        "version": "x==1", "passed": ["chat"], "answers": 4, "seconds": 1.3
    }  # fmt: skip
    assert set(PACKAGES) == set(CLIENTS) and report.LOADS.keys() <= CLIENTS.keys()
    assert report.well("litellm", 1, {}) and not report.well("litellm", 0, {})
    assert report.well("aiperf", 16, {"errors": 0}) and not report.well("aiperf", 15, {"errors": 0})
    assert not report.well("guidellm", 30, {"errors": 1})
    assert all(sum(one.startswith(package) for one in pinned()) == 1 for package in PACKAGES.values())
