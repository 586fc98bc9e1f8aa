"""The tree of settings: each with its default, its bounds, and what it means.

A leaf's name is unique in the whole tree: `gateway.port` is `[gateway] port` in the file, `PILLION_PORT` in
the environment and `--port` as a flag.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

ENV_PREFIX = "PILLION_"
DEFAULT_SLO_TBT = 0.1  # seconds


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the tree's sections."""


Positive = Annotated[int, Meta(ge=1)]
Threads = Annotated[int, Meta(ge=1, le=1024)]


class Stack(Section, frozen=True):
    """Which services belong together, and where they keep what they know."""

    stack: Annotated[
        str, Meta(description="name of the stack; its keys and state carry it", pattern=r"^[a-zA-Z0-9_.-]+$")
    ] = "default"
    redis: Annotated[
        str | None, Meta(description="redis://, rediss:// or unix:// URL; none starts the embedded Valkey")
    ] = None
    durability: Annotated[
        str,
        Meta(
            description="what an accepted request survives: the end of Redis' `process`, or of the machine: "
            "it then waits for the `disk`",
            pattern="^(process|disk)$",
        ),
    ] = "process"
    replicas: Annotated[
        Positive, Meta(description="pairs of scheduler and executor that `pillion up` starts")
    ] = 1
    state_dir: Annotated[str | None, Meta(description="state folder [$XDG_STATE_HOME/pillion]")] = None
    hang_timeout: Annotated[
        float,
        Meta(
            description="seconds without any answer after which `pillion up` kills a process and starts it"
            " again",
            gt=0,
        ),
    ] = 60.0
    cache_dir: Annotated[str | None, Meta(description="models folder [$XDG_CACHE_HOME/pillion]")] = None


class Model(Section, frozen=True):
    """Which model is served, and as what."""

    model: Annotated[str, Meta(description="safetensors folder, GGUF file, hub id, or `demo`")] = "demo"
    revision: Annotated[str | None, Meta(description="revision of a hub id")] = None
    served_model_name: Annotated[str | None, Meta(description="name that clients use [as in --model]")] = None
    dtype: Annotated[
        str,
        Meta(description="auto, bfloat16, float32 or float16", pattern="^(auto|bfloat16|float32|float16)$"),
    ] = "auto"
    quantization: Annotated[
        str,
        Meta(
            description="how weights are held: none: in --dtype; int8: with a scale for each 32 inputs, as "
            "activations then are too; gguf: 4 bit where the file has it, else int8 (cpu backend)",
            pattern="^(none|int8|gguf)$",
        ),
    ] = "none"
    max_model_len: Annotated[
        Positive | None, Meta(description="tokens a sequence, prompt and output [the model's context]")
    ] = None
    chat_template: Annotated[
        str | None, Meta(description="file with a Jinja chat template [the model's own]")
    ] = None
    generation_config: Annotated[
        str,
        Meta(
            description="auto: sampling defaults from generation_config.json; none: neutral",
            pattern="^(auto|none)$",
        ),
    ] = "auto"


class Gateway(Section, frozen=True):
    """The HTTP side."""

    host: Annotated[str, Meta(description="address to listen on")] = "127.0.0.1"
    port: Annotated[int, Meta(description="port to listen on; 0 takes a free one", ge=0, le=65535)] = 8000
    api_key: Annotated[
        tuple[str, ...], Meta(description="key that clients must send; may be given several times")
    ] = ()
    api_keys_file: Annotated[
        str | None, Meta(description="TOML file with tenants and the hashes of their keys, see `pillion key`")
    ] = None
    admin_key: Annotated[
        str | None,
        Meta(description="key of /admin/v1/...: lists and cancels requests, drains replicas [off]"),
    ] = None
    ssl_certfile: Annotated[
        str | None, Meta(description="certificate chain, PEM: the gateway speaks HTTPS [HTTP]")
    ] = None
    ssl_keyfile: Annotated[str | None, Meta(description="the certificate's key, PEM [in --ssl-certfile]")] = (
        None
    )
    allowed_hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="name under which clients may reach the gateway, several times; `*` for all "
            "[without keys on loopback: local names, else all]"
        ),
    ] = ()
    max_connections: Annotated[Positive, Meta(description="most open connections")] = 2048
    read_timeout: Annotated[
        float, Meta(description="seconds in which a request's head, and then its body, must have come", gt=0)
    ] = 30.0
    write_timeout: Annotated[
        float, Meta(description="seconds after which a client that reads nothing is cut off", gt=0)
    ] = 30.0
    keepalive_timeout: Annotated[
        float, Meta(description="seconds that a connection may stay open without a request", gt=0)
    ] = 75.0
    max_body_bytes: Annotated[Positive, Meta(description="largest request body, bytes")] = 8 << 20
    page: Annotated[
        bool, Meta(description="a page to chat with, at `/`; it needs no key, its requests do")
    ] = True
    unknown_fields: Annotated[
        str,
        Meta(
            description="`reject` a body with a field that is not known, naming the nearest that is; or "
            "`warn`: ignore the field, count it, and log its name once",
            pattern="^(reject|warn)$",
        ),
    ] = "reject"
    max_choices: Annotated[
        Positive, Meta(description="most sequences a request may ask for (prompts x n)")
    ] = 128
    tool_call_parser: Annotated[
        str,
        Meta(
            description="how the model writes tool calls: hermes, llama3_json or mistral; `auto` looks into"
            " the chat template; with `none`, tools are refused",
            pattern="^(auto|none|hermes|llama3_json|mistral)$",
        ),
    ] = "auto"
    reasoning_parser: Annotated[
        str,
        Meta(
            description="what marks reasoning before an answer: `think` is `<think>...</think>`; `auto`"
            " looks into the chat template",
            pattern="^(auto|none|think)$",
        ),
    ] = "auto"
    request_timeout: Annotated[float, Meta(description="longest life of a request, seconds", gt=0)] = 3600.0
    drain_timeout: Annotated[float, Meta(description="grace period on SIGTERM, seconds", ge=0)] = 30.0


class TenantLimits(Section, frozen=True):
    """What one tenant may use; None: no limit."""

    rpm: Positive | None = None  # requests a minute
    tpm: Positive | None = None  # tokens a minute, prompt and output
    concurrency: Positive | None = None  # sequences that wait or run at once
    weight: Annotated[float, Meta(gt=0)] = 1.0  # of its share, against other tenants'


class Admission(Section, frozen=True):
    """What waits, and how much of it."""

    max_waiting: Annotated[
        Positive,
        Meta(description="most requests that wait before a replica has room; more are refused with 429"),
    ] = 1024
    credit_seconds: Annotated[
        float, Meta(description="seconds of prefill that a replica holds; the rest waits in admission", gt=0)
    ] = 2.0
    slo_ttft: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(
            description="target of the time to first token, seconds: what would miss it is refused with 429, "
            "and no more run at once than --slo-tbt allows [nothing is refused for it]"
        ),
    ] = None
    tenant_rpm: Annotated[
        Positive | None, Meta(description="requests a minute of each tenant [no limit]")
    ] = None
    tenant_tpm: Annotated[
        Positive | None, Meta(description="tokens a minute of each tenant, prompt and output [no limit]")
    ] = None
    tenant_concurrency: Annotated[
        Positive | None, Meta(description="sequences of each tenant that wait or run at once [no limit]")
    ] = None
    tenant_limits: Annotated[
        tuple[str, ...],
        Meta(
            description="one tenant's own, several times: `NAME rpm=N tpm=N concurrency=N weight=X`, each "
            "optional; a weight of 2 gets twice the share"
        ),
    ] = ()


POLICIES = (
    "stall-free",
    "fixed-budget",
    "sarathi",
    "prefill-first",
    "orca",
    "request-level",
    "chunked-only",
    "hybrid-only",
)  # of batching; the first is the default


class Scheduler(Section, frozen=True):
    """What a step carries."""

    replica: Annotated[str, Meta(description="name of the replica", pattern=r"^[a-zA-Z0-9_.-]+$")] = "0"
    policy: Annotated[
        str,
        Meta(
            description="batching policy; those beside `stall-free` are there for comparison: "
            + ", ".join(f"`{name}`" for name in POLICIES[1:]),
            pattern=f"^({'|'.join(POLICIES)})$",
        ),
    ] = POLICIES[0]
    max_num_seqs: Annotated[Positive, Meta(description="most sequences that run at once (slots)")] = 64
    max_num_batched_tokens: Annotated[
        Positive | None, Meta(description="the token budget: most tokens a step computes [from --slo-tbt]")
    ] = None
    slo_tbt: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="target of the time between tokens, seconds [0.1; none beside an explicit budget]"),
    ] = None
    max_step_seconds: Annotated[
        float | None, Meta(description="longest step with no decode to protect, seconds [twice --slo-tbt]")
    ] = None
    multi_step_seconds: Annotated[
        float,
        Meta(
            description="longest time of several decode steps in one plan, seconds, while a few sequences run"
            " alone: an arrival may wait so long; never over --slo-tbt; 0: a plan is one step",
            ge=0,
        ),
    ] = 0.02
    cost_model: Annotated[
        str,
        Meta(
            description="what tells how long a step will take: `auto`: the file that `pillion profile` left"
            " for this model and machine, else what steps took so far; `none`: that alone; or a file"
        ),
    ] = "auto"
    tile: Annotated[
        Positive | None, Meta(description="rows at whose multiples the GEMMs are efficient [the executor's]")
    ] = None
    enable_prefix_caching: Annotated[bool, Meta(description="reuse the KV of common prefixes")] = True
    watermark: Annotated[
        float,
        Meta(description="share of the blocks kept free for decodes when a prompt is let in", ge=0, lt=1),
    ] = 0.01
    min_prefill_share: Annotated[
        float, Meta(description="least share of the budget that waiting prompts get", ge=0, le=1)
    ] = 0.125
    prefill_guard: Annotated[
        str,
        Meta(
            description="how that share is kept against decodes: `stretch` the step, or decodes take `turns`",
            pattern="^(stretch|turns)$",
        ),
    ] = "stretch"
    priority_ageing: Annotated[
        float, Meta(description="seconds of waiting that weigh as much as one level of priority", gt=0)
    ] = 10.0
    lease_seconds: Annotated[
        float, Meta(description="life of the replica's lease without renewal, seconds", gt=0)
    ] = 3.0
    step_timeout: Annotated[
        float,
        Meta(
            description="seconds that a step may be late before its executor counts as hung: the scheduler"
            " starts its sequences anew, the executor ends",
            gt=0,
        ),
    ] = 60.0
    replica_timeout: Annotated[
        float,
        Meta(
            description="seconds without a word or a lease after which other replicas take what it ran",
            gt=0,
        ),
    ] = 10.0
    journal_retention: Annotated[
        float, Meta(description="how long a finished request's record is kept, seconds", gt=0)
    ] = 600.0
    record: Annotated[
        str | None,
        Meta(
            description="folder for a recording of what the scheduler decides on, see `pillion replay` [off]"
        ),
    ] = None
    record_bytes: Annotated[
        Positive,
        Meta(description="most bytes of a replica's recordings, which come in parts; the oldest go"),
    ] = 256 << 20

    @property
    def step_target(self) -> float | None:
        """Seconds that a step with decodes may take; None where the token budget alone was asked for."""
        if self.slo_tbt is None and self.max_num_batched_tokens is None:
            return DEFAULT_SLO_TBT
        return self.slo_tbt


class Executor(Section, frozen=True):
    """What runs the steps."""

    executor: Annotated[
        str | None,
        Meta(
            description="address that the executor listens on and the scheduler dials, host:port or unix:PATH"
        ),
    ] = None
    executor_secret: Annotated[
        str | None,
        Meta(description="secret that scheduler and executor share; needed beyond loopback without TLS"),
    ] = None
    executor_certfile: Annotated[
        str | None, Meta(description="own certificate between scheduler and executor, PEM (mutual TLS)")
    ] = None
    executor_keyfile: Annotated[str | None, Meta(description="that certificate's key, PEM")] = None
    executor_cafile: Annotated[
        str | None, Meta(description="authority that must have signed the other side's certificate, PEM")
    ] = None
    backend: Annotated[str, Meta(description="kernels: auto, cpu, torch, reference")] = "auto"
    threads: Annotated[
        Threads | None, Meta(description="compute threads [the cores that this process may use]")
    ] = None
    block_size: Annotated[
        Positive | None, Meta(description="token positions a KV block [the backend's choice]")
    ] = None
    num_kv_blocks: Annotated[Positive | None, Meta(description="KV blocks [from the memory]")] = None
    kv_cache_memory: Annotated[
        str | None,
        Meta(
            description="memory for KV, as 512MiB or 4GiB [on CPUs a quarter of what is free, at most 4GiB; "
            "on GPUs what --gpu-memory-utilization leaves]"
        ),
    ] = None
    kv_cache_dtype: Annotated[
        str,
        Meta(
            description="how KV is held: auto: in --dtype; int8: with a scale for each position and head "
            "(cpu and reference backends)",
            pattern="^(auto|int8)$",
        ),
    ] = "auto"
    gpu_memory_utilization: Annotated[
        float, Meta(description="share of a GPU's memory that the executor may use", gt=0, le=1)
    ] = 0.9
    device: Annotated[str, Meta(description="auto, cpu or cuda")] = "auto"


class Telemetry(Section, frozen=True):
    """Logs and metrics. Traces follow the OTEL_* variables."""

    log_level: Annotated[
        str, Meta(description="debug, info, warning or error", pattern="^(debug|info|warning|error)$")
    ] = "info"
    log_format: Annotated[
        str, Meta(description="auto, text or json; auto is text on a terminal", pattern="^(auto|text|json)$")
    ] = "auto"
    metrics_compat: Annotated[
        str,
        Meta(
            description="`vllm`: the gateway serves vLLM's names too, for dashboards that ask for them",
            pattern="^(none|vllm)$",
        ),
    ] = "none"
    metrics_host: Annotated[
        str, Meta(description="address of the metrics endpoint (the gateway serves /metrics itself)")
    ] = "127.0.0.1"
    metrics_port: Annotated[
        Annotated[int, Meta(ge=0, le=65535)] | None,
        Meta(description="port of the metrics endpoint; 0 takes a free one [off]"),
    ] = None


class Config(Section, frozen=True):
    """The whole tree."""

    stack: Stack = Stack()
    model: Model = Model()
    gateway: Gateway = Gateway()
    admission: Admission = Admission()
    scheduler: Scheduler = Scheduler()
    executor: Executor = Executor()
    telemetry: Telemetry = Telemetry()

    @property
    def state_path(self) -> Path:
        """The stack's own state folder."""
        return _folder(self.stack.state_dir, "XDG_STATE_HOME", ".local/state") / self.stack.stack

    @property
    def cache_path(self) -> Path:
        """The models folder, common to all stacks."""
        return _folder(self.stack.cache_dir, "XDG_CACHE_HOME", ".cache")


class Leaf(msgspec.Struct, frozen=True):
    """One setting: where it stands, its default and what it means."""

    section: str
    name: str
    default: Any
    help: str
    type: Any

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.name.upper()

    @property
    def secret(self) -> bool:
        return self.name in ("api_key", "admin_key", "redis", "executor_secret")


def leaves() -> Iterator[Leaf]:
    """All settings, in the tree's order."""
    for section in msgspec.structs.fields(Config):
        for field in msgspec.structs.fields(section.type):
            yield Leaf(section.name, field.name, field.default, _description(field.type), field.type)


def _folder(given: str | None, variable: str, fallback: str) -> Path:
    if given:
        return Path(given).expanduser()
    base = os.environ.get(variable)
    return (Path(base) if base else Path.home() / fallback) / "pillion"


def _description(annotation: Any) -> str:
    for meta in getattr(annotation, "__metadata__", ()):
        if meta.description:
            return str(meta.description)
    return ""
