"""`pillion bench kernels`: each operator of a backend against the least time that the machine allows."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Column, Table

from pillion.config import Config
from pillion.executor.models.registry import read_spec
from pillion.kernels import operators
from pillion.modelfiles import locate
from pillion.ops.bench.ceilings import Ceilings, best, ceilings_of
from pillion.ops.bench.report import ceilings_told, shown


def run(
    config: Config, rows: Sequence[int], contexts: Sequence[int], seconds: float, output: Path | None
) -> None:
    """Measures for about so many seconds each, shows a table, and keeps the raw result as JSON.

    Raises NoBackend, NoCeilings, ModelFileError.
    """
    result = measure(config, rows, contexts, seconds)
    if output:
        output.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    told(result)


def measure(config: Config, rows: Sequence[int], contexts: Sequence[int], seconds: float) -> dict[str, Any]:
    """The raw result. Raises NoBackend, NoCeilings, ModelFileError."""
    model, revision = config.model.model, config.model.revision
    spec = read_spec(locate(model, revision, config.cache_path, weights=False))
    sizes = operators.Sizes(
        hidden=spec.hidden_size,
        heads=spec.num_heads,
        kv_heads=spec.num_kv_heads,
        head_size=spec.head_size,
        mlp=spec.intermediate_size,
        vocabulary=spec.vocab_size,
        layers=spec.num_layers,
    )
    threads = config.executor.threads or len(os.sched_getaffinity(0))
    quantization = config.model.quantization
    kv_int8 = config.executor.kv_cache_dtype == "int8"
    backend, reason = operators.backend(config.executor.backend, threads, quantization, kv_int8)
    bench = operators.Bench(backend, sizes, contexts, quantization, kv_int8=kv_int8)
    before = ceilings_of(threads)
    timings = []
    for timing in operators.timings(bench, rows, seconds):
        click.echo(f"{timing.name}, {timing.rows} rows: {timing.seconds * 1e6:.1f} us", err=True)
        timings.append(timing)
    after = ceilings_of(threads)
    return {
        "model": model,
        "sizes": asdict(sizes),
        "backend": backend.name,
        "build": backend.build,
        "reason": reason,
        "quantization": quantization,
        "kv_cache_dtype": config.executor.kv_cache_dtype,
        "threads": threads,
        "ceilings": [before, after],
        "operators": [against(timing, best(before, after)) for timing in timings],
    }


def against(timing: operators.Timing, ceilings: Ceilings) -> dict[str, Any]:
    """A timing with its floor in seconds, and how often that goes into its time."""
    floor = ceilings.seconds(timing.flops, timing.bytes, int8=timing.int8)
    return asdict(timing) | {"floor": floor, "ratio": timing.seconds / floor}


def told(result: dict[str, Any]) -> None:
    console = Console()
    table = Table(
        "operator", *(Column(name, justify="right") for name in ("rows", "median, us", "floor, us", "ratio"))
    )
    last = ""
    for one in result["operators"]:
        name = one["name"]
        if name != last:
            table.add_section()
        microseconds = (shown(one[which] * 1e6) for which in ("seconds", "floor"))
        table.add_row(name if name != last else "", str(one["rows"]), *microseconds, f"{one['ratio']:.2f}")
        last = name
    console.print(
        f"backend {result['backend']} ({result['reason']})", markup=False, highlight=False, soft_wrap=True
    )
    console.print(table)
    ceilings_told(console, result)
