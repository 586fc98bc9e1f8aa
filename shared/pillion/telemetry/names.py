"""Every name of a metric, span or attribute that Pillion emits; `docs/metrics.md` is made from METRICS."""

from dataclasses import dataclass
from typing import Literal

SCHEMA_URL = "https://opentelemetry.io/schemas/1.37.0"
"""The semantic conventions that the names below follow."""

NAMESPACE = "pillion"
PROVIDER = "pillion"

Kind = Literal["counter", "gauge", "histogram"]
Layer = Literal["gateway", "user", "queue", "scheduler", "executor", "process"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric as scraped. A counter's name ends in `_total`; seconds and bytes everywhere."""

    name: str
    kind: Kind
    layer: Layer
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def _doubling(start: float, end: float) -> tuple[float, ...]:
    buckets = [start]
    while buckets[-1] * 2 <= end * 1.0001:
        buckets.append(round(buckets[-1] * 2, 6))
    return tuple(buckets)


_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_TBT = (
    0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.125, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0,
    10.0,
)  # fmt: skip
_STEP = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0)
_SHORT = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)
_TOKENS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0)
_STEPS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0)

_GEN_AI = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")

REQUEST_DURATION = Metric(
    "gen_ai_server_request_duration_seconds", "histogram", "gateway",
    "From the request's arrival at the gateway to the end of its answer.",
    (*_GEN_AI, "error_type"), _doubling(0.01, 81.92),
)  # fmt: skip
TIME_TO_FIRST_TOKEN = Metric(
    "gen_ai_server_time_to_first_token_seconds", "histogram", "gateway",
    "From the request's arrival at the gateway to its first token (TTFT).", _GEN_AI, _TTFT,
)  # fmt: skip
TIME_PER_OUTPUT_TOKEN = Metric(
    "gen_ai_server_time_per_output_token_seconds", "histogram", "gateway",
    "Mean time between the tokens of a request after its first (TPOT).", _GEN_AI, _PER_TOKEN,
)  # fmt: skip

TIME_BETWEEN_TOKENS = Metric(
    "pillion_time_between_tokens_seconds", "histogram", "user",
    "Time between two consecutive tokens of one stream (TBT), preemption included; 0 where they came together"
    " in one result.", (), _TBT,
)  # fmt: skip
REQUESTS_STARTED = Metric(
    "pillion_requests_started_total", "counter", "user", "Requests that passed validation."
)
REQUESTS = Metric(
    "pillion_requests_total", "counter", "user",
    "Requests that ended at this gateway: finished, parked (they go on where the client comes back, or in"
    " another connection), aborted (cancelled, or the client left before it ran or when all was done) or"
    " failed. One that had ended before and is sent again counts as resumed only.", ("outcome",),
)  # fmt: skip
REQUESTS_RUNNING = Metric("pillion_requests_running", "gauge", "user", "Requests started and not yet ended.")
INBOXES = Metric("pillion_inboxes", "gauge", "user", "Inboxes open at the gateway: one a running request.")
SLO_REQUESTS = Metric(
    "pillion_slo_requests_total",
    "counter",
    "user",
    "Requests that met or missed a target.",
    ("target", "met"),
)
RESUMED = Metric(
    "pillion_resumed_total", "counter", "user",
    "Requests gone on with for a client that came back, by how they stood: parked, running or finished.",
    ("stood",),
)  # fmt: skip
IGNORED_KEYS = Metric(
    "pillion_ignored_keys_total",
    "counter",
    "user",
    "Unknown keys inside messages, their content parts and tool calls that were ignored.",
)
IGNORED_FIELDS = Metric(
    "pillion_ignored_fields_total",
    "counter",
    "user",
    "Unknown fields of requests that were ignored, with --unknown-fields warn.",
)

QUEUE_REQUESTS = Metric(
    "pillion_queue_requests",
    "gauge",
    "queue",
    "Requests that wait in admission for a replica's credit.",
    ("priority",),
)
SCHEDULING_DELAY = Metric(
    "pillion_scheduling_delay_seconds", "histogram", "queue",
    "From arrival to the first step that carries any of a sequence's tokens.", (), _TTFT,
)  # fmt: skip
QUEUE_WAIT = Metric(
    "pillion_queue_wait_seconds", "histogram", "queue",
    "From admission's reading of a request to its going on to a replica.", (), _TTFT,
)  # fmt: skip
TTFT_OVER_PREDICTED = Metric(
    "pillion_ttft_over_predicted", "histogram", "queue",
    "Time to first token over what admission predicted; 1 is exact.", (),
    (0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0),
)  # fmt: skip
REJECTIONS = Metric(
    "pillion_rejections_total", "counter", "queue", "Requests refused by admission.", ("reason",)
)
PROMPT_TOKENS_ARRIVED = Metric(
    "pillion_prompt_tokens_arrived_total", "counter", "queue", "Prompt tokens of requests that arrived."
)
PREFILL_RATE_LEFT = Metric(
    "pillion_prefill_rate_left", "gauge", "queue",
    "Prompt tokens per second that steps can carry beside the running decodes: f * (budget - decodes).",
)  # fmt: skip

STEP_TOKENS = Metric(
    "pillion_step_tokens_total",
    "counter",
    "scheduler",
    "Tokens computed, by kind: prefill or decode.",
    ("kind",),
)
PLAN_STEPS = Metric(
    "pillion_plan_steps", "histogram", "scheduler",
    "Steps that a plan grants: several where a few sequences run alone (--multi-step-seconds).",
    (), _STEPS,
)  # fmt: skip
STEP_BUDGET_TOKENS = Metric(
    "pillion_step_budget_tokens", "gauge", "scheduler", "The token budget of the latest step."
)
STEP_LIMIT_TOKENS = Metric(
    "pillion_step_limit_tokens",
    "gauge",
    "scheduler",
    "Most tokens that a step may compute, as configured or as an administrator wants it.",
)
STEP_TARGET = Metric(
    "pillion_step_target_seconds",
    "gauge",
    "scheduler",
    "What a step with decodes may take, as configured or as an administrator wants it; 0: any time.",
)
STEP_CORRECTION = Metric(
    "pillion_step_correction_ratio",
    "gauge",
    "scheduler",
    "By what the cost model is corrected, 1/16 to 16: `middle` is what steps take over what it says (1 where"
    " it is learned), `high` what one in twenty exceeds, from which budgets are made.",
    ("level",),
)
CHUNK_TOKENS = Metric("pillion_chunk_tokens", "histogram", "scheduler", "Prompt tokens a chunk.", (), _TOKENS)
SEQUENCES = Metric("pillion_sequences", "gauge", "scheduler", "Sequences by state.", ("state",))
PREEMPTIONS = Metric("pillion_preemptions_total", "counter", "scheduler", "Preemptions of running sequences.")
RECOMPUTED_TOKENS = Metric(
    "pillion_recomputed_tokens_total", "counter", "scheduler", "Tokens computed again after a preemption."
)
PREFIX_QUERIED_TOKENS = Metric(
    "pillion_prefix_queried_tokens_total", "counter", "scheduler", "Prompt tokens asked of the prefix index."
)
PREFIX_HIT_TOKENS = Metric(
    "pillion_prefix_hit_tokens_total", "counter", "scheduler", "Prompt tokens found in the prefix index."
)
PREFIX_FLUSHED_BLOCKS = Metric(
    "pillion_prefix_flushed_blocks_total",
    "counter",
    "scheduler",
    "Blocks that an administrator took out of the prefix index.",
)
BLOCKS = Metric("pillion_blocks", "gauge", "scheduler", "KV blocks: free, cached or referenced.", ("state",))
SCHEDULE_SECONDS = Metric(
    "pillion_schedule_seconds",
    "histogram",
    "scheduler",
    "Time to handle one event, planning included.",
    (),
    _SHORT,
)
LEDGER_REQUESTS = Metric(
    "pillion_ledger_requests", "gauge", "scheduler", "Requests whose run entry is not settled yet."
)
LATE_RESULTS = Metric(
    "pillion_late_results_total", "counter", "scheduler", "Results for sequences that had ended before."
)
EXECUTORS_LOST = Metric(
    "pillion_executors_lost_total", "counter", "scheduler",
    "Executors that died, were cut off, or were given up on past a step's deadline.",
)  # fmt: skip
POISONOUS = Metric(
    "pillion_poisonous_sequences_total", "counter", "scheduler",
    "Sequences given up since every step with them failed, also alone.",
)  # fmt: skip
PARKED = Metric(
    "pillion_parked_total",
    "counter",
    "scheduler",
    "Requests that this scheduler ran and parked: their client or gateway went away.",
)
DEAD_LETTERS = Metric(
    "pillion_dead_letters_total",
    "counter",
    "scheduler",
    "Stream entries set aside: unreadable or delivered too often.",
)

STEP_SECONDS = Metric(
    "pillion_step_seconds", "histogram", "executor",
    "Time of one step, a forward pass: a plan of several counts each.", (), _STEP,
)  # fmt: skip
STEP_GAP_SECONDS = Metric(
    "pillion_step_gap_seconds",
    "histogram",
    "executor",
    "Idle time between two plans while one was expected.",
    (),
    _SHORT,
)
STEPS_FAILED = Metric(
    "pillion_steps_failed_total", "counter", "executor",
    "Steps that raised; what the plan's steps before it brought is dropped, and not counted.",
)  # fmt: skip
STEP_PART_SECONDS = Metric(
    "pillion_step_part_seconds_total", "counter", "executor", "Time of steps by part.", ("part",)
)
FLOPS = Metric(
    "pillion_flops_total", "counter", "executor",
    "Operations (2 a multiply-add) of projections, MLPs, attention and output head; padding left out."
    " By the steps' operations per byte: `intensity` is the power of two that they do not exceed.",
    ("intensity",),
)  # fmt: skip
READ_BYTES = Metric(
    "pillion_read_bytes_total", "counter", "executor",
    "Bytes of weights that steps read, once each, and of the KV that each sequence's rows see; `intensity`"
    " as above.", ("intensity",),
)  # fmt: skip
UNREADABLE = Metric(
    "pillion_unreadable_total", "counter", "process",
    "Entries of the bus, by kind, that a process cannot read and leaves out: another release's, or damaged.",
    ("kind",),
)  # fmt: skip
TASKS = Metric("pillion_tasks", "gauge", "process", "asyncio tasks that live in the process.")
BUILD_INFO = Metric("pillion_build_info", "gauge", "process", "Always 1.", ("service", "version"))

METRICS: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))

# Spans
SPAN_QUEUE = "queue"
SPAN_PREFILL = "prefill"
SPAN_DECODE = "decode"
SPAN_EXECUTE_PREFILL = "execute prefill"
SPAN_EXECUTE_DECODE = "execute decode"
EVENT_CHUNK = "chunk"
EVENT_LONGEST_STEP = "longest step"
EVENT_LONGEST_GAP = "longest gap"
SLO_MISSED = "pillion.slo.missed"
"""On the `chat` span: `ttft`, `tbt` or `ttft,tbt`; absent where all was met. Collectors keep such traces."""

# Attributes of the `chat` span
OPERATION_NAME = "gen_ai.operation.name"
PROVIDER_NAME = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE = "gen_ai.request.temperature"
REQUEST_TOP_P = "gen_ai.request.top_p"
REQUEST_TOP_K = "gen_ai.request.top_k"
REQUEST_SEED = "gen_ai.request.seed"
REQUEST_STREAM = "gen_ai.request.stream"
REQUEST_CHOICE_COUNT = "gen_ai.request.choice.count"
REQUEST_FREQUENCY_PENALTY = "gen_ai.request.frequency_penalty"
REQUEST_PRESENCE_PENALTY = "gen_ai.request.presence_penalty"
RESPONSE_ID = "gen_ai.response.id"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons"
USAGE_INPUT_TOKENS = "gen_ai.usage.input_tokens"
USAGE_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
USAGE_CACHE_READ_INPUT_TOKENS = "gen_ai.usage.cache_read.input_tokens"
ERROR_TYPE = "error.type"

# Attributes of bus spans
MESSAGING_SYSTEM = "messaging.system"
MESSAGING_OPERATION_NAME = "messaging.operation.name"
MESSAGING_OPERATION_TYPE = "messaging.operation.type"
MESSAGING_DESTINATION_NAME = "messaging.destination.name"
MESSAGING_MESSAGE_ID = "messaging.message.id"
MESSAGING_CONSUMER_GROUP_NAME = "messaging.consumer.group.name"
