"""vLLM's names, from what accounts, heartbeats and replicas' words say: exact values of the exposition."""

from dataclasses import dataclass

import msgspec
import pytest

from pillion.contracts.entries import Facts, Heartbeat, Request, Sampling, Usage
from pillion.gateway.health import FRESH, Replicas
from pillion.gateway.vllm import ENDED, Vllm
from pillion.telemetry import Metrics, vllm

FACTS = Facts(
    model="m", fingerprint="f", max_model_len=512, vocab_size=100, end_tokens=(2,), block_size=16,
    num_blocks=65, max_num_seqs=4, max_step_tokens=64, tile=8, dtype="bfloat16", backend="cpu",
)  # fmt: skip
BEAT = Heartbeat(
    replica="0", epoch=7, state="ready", facts=FACTS, running=3, waiting=2, kv_usage=0.25, steps=10,
    prefilled=100, decoded=50, preemptions=4, prefix_queried=80, prefix_hit=32,
)  # fmt: skip


class Told:
    """A gateway's exposition, and what feeds it; `now` is its clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.replicas = Replicas()
        self.metrics = Metrics("gateway", "0", [*vllm.BY_REQUEST, vllm.STEP_TOKENS])
        self.vllm = Vllm(self.metrics, lambda: self.replicas.speaking(self.now))

    def value(self, series: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(series, {"model_name": "m", "engine": "all"} | labels)


@pytest.fixture
def told() -> Told:
    return Told()


@dataclass(frozen=True)
class Running:
    request: Request


def test_a_request_is_counted_by_its_parts(told: Told) -> None:
    told.vllm.first("m", 0.3, prompt=40)
    told.vllm.tokens("m", 1, None)
    told.vllm.tokens("m", 3, 0.06)  # three that came together
    told.vllm.finished("r", "m", 40, [4, 1], seconds=0.5, decode=0.06)
    told.vllm.ended("m", ["stop", "tool_calls", "length"])
    told.vllm.ended("m", ["abort"])
    assert told.value("vllm:time_to_first_token_seconds_sum") == 0.3
    assert told.value("vllm:prompt_tokens_total") == 40
    assert told.value("vllm:generation_tokens_total") == 4
    for name in ("inter_token_latency_seconds", "time_per_output_token_seconds"):
        assert told.value(f"vllm:{name}_count") == 3
        assert told.value(f"vllm:{name}_sum") == 0.06
    assert told.value("vllm:e2e_request_latency_seconds_sum") == 0.5
    assert told.value("vllm:request_prompt_tokens_sum") == 40
    assert told.value("vllm:request_generation_tokens_sum") == 5
    assert told.value("vllm:request_max_num_generation_tokens_sum") == 4
    assert told.value("vllm:request_decode_time_seconds_sum") == 0.06
    assert told.value("vllm:request_time_per_output_token_seconds_sum") == pytest.approx(0.02)
    reasons = {
        reason: told.value("vllm:request_success_total", finished_reason=reason)
        for reason in ("stop", "length", "abort", "error")
    }
    assert reasons == {"stop": 2, "length": 1, "abort": 1, "error": None}


def test_a_request_that_was_resumed_has_no_times_of_a_whole_one(told: Told) -> None:
    told.vllm.finished("r", "m", 40, [4], seconds=0.5, decode=None)
    assert told.value("vllm:e2e_request_latency_seconds_count") == 1
    assert told.value("vllm:request_decode_time_seconds_count") is None


def test_a_replica_s_word_counts_where_the_request_runs_or_has_just_ended(told: Told) -> None:
    request = Request("here", "g", "m", ((1,),), Sampling(1), 0.0)
    told.vllm.finished("over", "m", 1, [1], 0.1, None)
    word = Usage(
        "0",
        first=(("here", 0.5), ("over", 0.75), ("elsewhere", 9.0)),
        queued=(("here", 0.25), ("over", 0.25), ("elsewhere", 8.0)),
    )
    told.vllm.used(word, {"here": Running(request)})
    assert told.value("vllm:request_queue_time_seconds_count") == 2
    assert told.value("vllm:request_queue_time_seconds_sum") == 0.5
    assert told.value("vllm:request_prefill_time_seconds_sum") == 0.25 + 0.5
    for number in range(ENDED):
        told.vllm.finished(str(number), "m", 1, [1], 0.1, None)
    told.vllm.used(word, {})
    assert told.value("vllm:request_queue_time_seconds_count") == 2


def test_steps_between_two_heartbeats_count_with_their_mean(told: Told) -> None:
    told.vllm.beat(None, BEAT, "m")
    later = msgspec.structs.replace(BEAT, steps=14, prefilled=160, decoded=90)
    told.vllm.beat(BEAT, later, "m")
    told.vllm.beat(later, later, "m")  # nothing new
    told.vllm.beat(
        later, msgspec.structs.replace(BEAT, epoch=8, steps=20), "m"
    )  # another process: totals anew
    assert told.value("vllm:iteration_tokens_total_count", engine="0") == 4
    assert told.value("vllm:iteration_tokens_total_sum", engine="0") == 100
    assert told.value("vllm:iteration_tokens_total_bucket", engine="0", le="16.0") == 0
    assert told.value("vllm:iteration_tokens_total_bucket", engine="0", le="32.0") == 4


def test_replicas_are_told_as_they_last_spoke_and_not_when_silent(told: Told) -> None:
    told.replicas.heard(BEAT, 0.0)
    expected = {
        "vllm:num_requests_running": 3,
        "vllm:num_requests_waiting": 2,
        "vllm:gpu_cache_usage_perc": 0.25,
        "vllm:kv_cache_usage_perc": 0.25,
        "vllm:prefix_cache_queries_total": 80,
        "vllm:prefix_cache_hits_total": 32,
        "vllm:num_preemptions_total": 4,
    }
    assert {name: told.value(name, engine="0") for name in expected} == expected
    config = {"block_size": "16", "num_gpu_blocks": "65", "cache_dtype": "bfloat16"}
    assert told.value("vllm:cache_config_info", engine="0", **config) == 1
    told.now = FRESH + 0.1
    assert told.value("vllm:num_requests_running", engine="0") is None


def test_every_name_is_in_the_exposition(told: Told) -> None:
    told.replicas.heard(BEAT, 0.0)
    text = told.metrics.text().decode()
    for metric in vllm.METRICS:
        assert f"# TYPE {metric.name} {metric.kind}\n" in text
