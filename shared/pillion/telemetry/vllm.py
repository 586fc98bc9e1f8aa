"""The names that vLLM's dashboards ask for, which the gateway adds with `--metrics-compat vllm`.

Names and labels are vLLM's; what each counts here is in its help. They break rules that our names keep.
"""

from pillion.telemetry.names import REQUEST_DURATION, TIME_BETWEEN_TOKENS, TIME_TO_FIRST_TOKEN, Kind, Metric

LABELS = ("model_name", "engine")
ALL = "all"
"""The engine of what is counted by request: the gateway does not ask which replica ran it."""

_TIMES = REQUEST_DURATION.buckets
_TOKENS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5)
_STEP_TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0)


def _metric(
    kind: Kind, name: str, text: str, buckets: tuple[float, ...] = (), more: tuple[str, ...] = ()
) -> Metric:
    return Metric(f"vllm:{name}", kind, "gateway", text, (*LABELS, *more), buckets)


# By request
E2E = _metric("histogram", "e2e_request_latency_seconds", "Arrival to end, of finished requests.", _TIMES)
FIRST = _metric(
    "histogram", "time_to_first_token_seconds", "Arrival to first token.", TIME_TO_FIRST_TOKEN.buckets
)
PER_TOKEN = _metric(
    "histogram", "time_per_output_token_seconds", "As inter_token_latency_seconds, by its older name.",
    TIME_BETWEEN_TOKENS.buckets,
)  # fmt: skip
BETWEEN = _metric(
    "histogram", "inter_token_latency_seconds", "Between two tokens of a stream.", TIME_BETWEEN_TOKENS.buckets
)
MEAN_PER_TOKEN = _metric(
    "histogram", "request_time_per_output_token_seconds", "Mean of a request after its first token.",
    TIME_BETWEEN_TOKENS.buckets,
)  # fmt: skip
QUEUED = _metric("histogram", "request_queue_time_seconds", "Arrival to first step.", _TIMES)
PREFILLED = _metric("histogram", "request_prefill_time_seconds", "First step to first token.", _TIMES)
DECODED = _metric("histogram", "request_decode_time_seconds", "First token to last.", _TIMES)
PROMPT = _metric("histogram", "request_prompt_tokens", "Prompt tokens of a finished request.", _TOKENS)
OUTPUT = _metric("histogram", "request_generation_tokens", "Output tokens of a finished request.", _TOKENS)
MOST = _metric(
    "histogram", "request_max_num_generation_tokens", "Output tokens of its longest choice.", _TOKENS
)
SUCCESS = _metric(
    "counter", "request_success_total", "Choices that ended, by why: stop, length, abort or error.",
    more=("finished_reason",),
)  # fmt: skip
PROMPT_TOKENS = _metric("counter", "prompt_tokens_total", "Prompt tokens of requests with a first token.")
OUTPUT_TOKENS = _metric("counter", "generation_tokens_total", "Output tokens.")

# By replica, from its heartbeats
STEP_TOKENS = _metric(
    "histogram", "iteration_tokens_total",
    "Tokens a step. Several steps between two heartbeats count with their mean; sum and count are exact.",
    _STEP_TOKENS,
)  # fmt: skip
RUNNING = _metric("gauge", "num_requests_running", "Sequences that run.")
WAITING = _metric("gauge", "num_requests_waiting", "Sequences that wait at the replica.")
GPU_USAGE = _metric("gauge", "gpu_cache_usage_perc", "As kv_cache_usage_perc, by its older name.")
KV_USAGE = _metric("gauge", "kv_cache_usage_perc", "Share of the KV blocks that sequences hold; 1 is all.")
PREFIX_QUERIES = _metric("counter", "prefix_cache_queries_total", "Prompt tokens asked of the prefix index.")
PREFIX_HITS = _metric("counter", "prefix_cache_hits_total", "Prompt tokens found in the prefix index.")
PREEMPTIONS = _metric("counter", "num_preemptions_total", "Preemptions of running sequences.")
CACHE_CONFIG = _metric(
    "gauge", "cache_config_info", "Always 1.", more=("block_size", "num_gpu_blocks", "cache_dtype")
)

BY_REQUEST = (
    *(E2E, FIRST, PER_TOKEN, BETWEEN, MEAN_PER_TOKEN, QUEUED, PREFILLED, DECODED, PROMPT, OUTPUT, MOST),
    *(SUCCESS, PROMPT_TOKENS, OUTPUT_TOKENS),
)
BY_REPLICA = (
    *(RUNNING, WAITING, GPU_USAGE, KV_USAGE, PREFIX_QUERIES, PREFIX_HITS, PREEMPTIONS, CACHE_CONFIG),
)
METRICS = (*BY_REQUEST, STEP_TOKENS, *BY_REPLICA)
