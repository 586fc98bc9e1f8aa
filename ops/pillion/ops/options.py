"""Flags from the configuration tree: what a leaf says of itself is all that a flag needs."""

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import click

from pillion.config import Config, ConfigError, Leaf, leaves, load
from pillion.ops import help

F = TypeVar("F", bound=Callable[..., Any])

SECTIONS = {
    "up": ("stack", "model", "gateway", "admission", "scheduler", "executor", "telemetry"),
    "gateway": ("stack", "model", "gateway", "telemetry"),
    "admission": ("stack", "admission", "telemetry"),
    "scheduler": ("stack", "model", "scheduler", "executor", "telemetry"),
    "executor": ("stack", "model", "scheduler", "executor", "telemetry"),
}
"""The sections that a service has flags for. A file or the environment may hold all."""

ONLY = {
    "bench load": ("stack", "state_dir", "api_key"),
    "bench traffic": ("stack", "state_dir", "api_key"),
    "bench kernels": (
        *("cache_dir", "model", "revision", "quantization", "backend", "threads", "kv_cache_dtype"),
    ),
    "bench quality": ("cache_dir", "model", "revision", "dtype", "backend", "threads", "kv_cache_memory"),
    "chat": ("stack", "state_dir", "api_key"),
    "explain": ("stack", "state_dir", "api_key"),
    "doctor": ("stack", "redis", "state_dir", "cache_dir", "model", "host", "port", "api_key"),
    "profile": (
        *("cache_dir", "model", "revision", "served_model_name", "dtype", "quantization", "max_model_len"),
        *("max_num_seqs", "max_num_batched_tokens", "tile", "executor", "executor_secret"),
        *("executor_certfile", "executor_keyfile", "executor_cafile", "backend", "threads", "block_size"),
        *("num_kv_blocks", "kv_cache_memory", "kv_cache_dtype", "gpu_memory_utilization", "device"),
        "log_format",
    ),
    "fetch": ("cache_dir", "model", "revision"),
    "tune": (
        *("max_model_len", "policy", "max_num_seqs", "max_num_batched_tokens", "slo_tbt", "max_step_seconds"),
        *("multi_step_seconds", "tile", "enable_prefix_caching", "watermark", "min_prefill_share"),
        *("prefill_guard", "priority_ageing", "block_size", "num_kv_blocks"),
    ),
    "health": ("stack", "redis", "state_dir", "host", "port", "replica", "executor"),
}
ONLY["simulate"] = (
    *("replicas", "max_waiting", "credit_seconds", "slo_ttft"),
    *("tenant_rpm", "tenant_tpm", "tenant_concurrency", "tenant_limits"),
    *ONLY["tune"],
)
ONLY["capacity"] = (*ONLY["bench traffic"], *ONLY["simulate"])
"""The settings that a command which runs no service looks at."""


class Command(click.Command):
    """Any of `pillion`'s."""

    def get_short_help_str(self, limit: int = 0) -> str:
        """The first sentence, whole: what is too long for a line goes on in the next."""
        return super().get_short_help_str(10_000)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if help.flags(formatter, self.get_params(ctx), ctx):
            formatter.write_paragraph()
            formatter.write_text(help.MORE)


def config_options(command: str, without: tuple[str, ...] = ()) -> Callable[[F], F]:
    """Gives a command `--config` and one flag for each setting that it uses, but for those in `without`."""
    chosen = [
        leaf
        for leaf in leaves()
        if (leaf.name in ONLY[command] if command in ONLY else leaf.section in SECTIONS[command])
        and leaf.name not in without
    ]

    def decorate(function: F) -> F:
        for leaf in reversed(chosen):
            function = _option(leaf)(function)
        return click.option("--config", metavar="FILE", help="TOML file with settings  [PILLION_CONFIG]")(
            function
        )

    return decorate


def configure(flags: dict[str, Any], file: str | None) -> Config:
    """The configuration of a command. A wrong setting ends the process with one line and code 2."""
    try:
        return load(flags, file=file).config
    except ConfigError as error:
        fail(str(error), 2)


def fail(message: str, code: int) -> NoReturn:
    """Ends the process with one line."""
    click.echo(f"pillion: {message}", err=True)
    raise SystemExit(code)


def is_bool(leaf: Leaf) -> bool:
    return isinstance(leaf.default, bool)


def _option(leaf: Leaf) -> Callable[[F], F]:
    meaning = help.meaning(leaf)
    if is_bool(leaf):
        flags = f"{leaf.flag}/--no-{leaf.flag[2:]}"
        return click.option(flags, leaf.name, cls=help.Setting, leaf=leaf, default=None, help=meaning)
    # Values go on as text: the configuration tree alone knows what is valid, whatever the source.
    several = isinstance(leaf.default, tuple)
    kind = help.kind(leaf)
    return click.option(
        leaf.flag, leaf.name, cls=help.Setting, leaf=leaf, metavar=kind, multiple=several, help=meaning
    )
