"""What every service exposes while it serves, held to the rules of `promtool check metrics`."""

import re
import shutil
import subprocess
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pillion.telemetry import names, vllm
from tests.promlint import problems
from tests.servers import Processes, free_port

SERVICES = ("executor", "scheduler", "admission", "gateway")


@pytest.fixture
def expositions(processes: Callable[..., Processes], tiny_model: Any) -> dict[str, str]:
    """By service, once a request is answered."""
    port = free_port()
    running = processes(
        model=tiny_model("llama3"), dtype="float32", num_kv_blocks=64, block_size=16, port=port,
        max_num_batched_tokens=64, max_num_seqs=4, metrics_port=0,
    )  # fmt: skip
    for service in SERVICES:
        running.start(service)
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 120
    while not _ready(url):
        assert time.monotonic() < deadline, running.log("gateway")
        time.sleep(0.1)
    body = {"prompt": "x" * 40, "max_tokens": 5, "ignore_eos": True}
    assert httpx.post(url + "/v1/completions", json=body, timeout=60).status_code == 200
    found = {"gateway": httpx.get(url + "/metrics").text}
    for service in SERVICES[:-1]:
        at = re.search(r"http://\S+/metrics", running.log(service))
        assert at, running.log(service)
        found[service] = httpx.get(at[0]).text
    assert "vllm:" not in found["gateway"]
    return found


def test_a_gateway_has_vllm_s_names_too_where_it_is_asked(
    processes: Callable[..., Processes], tiny_model: Any
) -> None:
    port = free_port()
    running = processes(
        model=tiny_model("llama3"), dtype="float32", num_kv_blocks=64, block_size=16, port=port,
        max_num_batched_tokens=64, max_num_seqs=4, metrics_compat="vllm",
    )  # fmt: skip
    for service in SERVICES:
        running.start(service)
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 120
    while not _ready(url):
        assert time.monotonic() < deadline, running.log("gateway")
        time.sleep(0.1)
    body = {"prompt": "x" * 40, "max_tokens": 5, "ignore_eos": True}
    assert httpx.post(url + "/v1/completions", json=body, timeout=60).status_code == 200

    def told() -> dict[str, float]:
        families = text_string_to_metric_families(httpx.get(url + "/metrics").text)
        return {
            sample.name: sample.value
            for family in families
            for sample in family.samples
            if sample.labels.get("model_name")
        }

    # What comes by heartbeats and by the replica's word comes a moment later.
    while (seen := told()).get("vllm:iteration_tokens_total_sum", 0) < 44 or (
        "vllm:request_queue_time_seconds_count" not in seen
    ):
        assert time.monotonic() < deadline, seen
        time.sleep(0.05)
    exact = {
        "prompt_tokens_total": 40, "generation_tokens_total": 5, "request_success_total": 1,
        "request_generation_tokens_sum": 5, "inter_token_latency_seconds_count": 4,
        "e2e_request_latency_seconds_count": 1, "request_queue_time_seconds_count": 1,
        "request_prefill_time_seconds_count": 1, "request_decode_time_seconds_count": 1,
        "iteration_tokens_total_sum": 44,
        "num_preemptions_total": 0, "cache_config_info": 1,
    }  # fmt: skip
    assert {name: seen.get(f"vllm:{name}") for name in exact} == exact
    assert seen["vllm:prefix_cache_queries_total"] > 0
    for metric in vllm.METRICS:
        suffix = "_count" if metric.kind == "histogram" else ""
        assert metric.name + suffix in seen, metric.name


def _ready(url: str) -> bool:
    try:
        return httpx.get(url + "/health/ready").status_code == 200
    except httpx.TransportError:
        return False


def test_every_exposition_passes_promtool_s_rules(expositions: dict[str, str]) -> None:
    assert set(expositions) == set(SERVICES)
    exposed: dict[str, float] = {}
    for service, text in expositions.items():
        assert problems(text) == [], service
        assert f'pillion_build_info{{service="{service}"' in text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                exposed[sample.name] = max(sample.value, exposed.get(sample.name, 0.0))
        if promtool := shutil.which("promtool"):
            subprocess.run([promtool, "check", "metrics"], input=text, text=True, check=True, timeout=30)
    counted = (
        *(names.FLOPS, names.READ_BYTES, names.STEP_SECONDS),
        *(names.CHUNK_TOKENS, names.PROMPT_TOKENS_ARRIVED, names.REQUESTS_STARTED),
    )
    for metric in counted:
        assert exposed[metric.name + ("_count" if metric.kind == "histogram" else "")] > 0, metric.name
