"""`pillion bench kernels`: each operator of a backend against the least time that the machine allows."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import click
import msgspec
from rich.console import Console

from pillion.config import Config
from pillion.executor.models.registry import read_spec
from pillion.kernels import operators
from pillion.modelfiles import locate
from pillion.ops.bench.ceilings import Ceilings, best, ceilings_of
from pillion.ops.bench.report import ceilings_told
from pillion.ops.report import Axis, Figure, Lines, Mark, Report, Series, Table, tell, write
from pillion.ops.report.origin import origin


def run(
    config: Config,
    rows: Sequence[int],
    contexts: Sequence[int],
    seconds: float,
    output: Path | None,
    page: str | None = None,
) -> None:
    """Measures for about so many seconds each, shows a table, keeps the raw result as JSON and a report.

    Raises NoBackend, NoCeilings, ModelFileError, NoReport.
    """
    result = measure(config, rows, contexts, seconds)
    if output:
        output.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    made = report(result)
    console = Console()
    if not console.is_terminal:
        console.width = 120
    told = f"backend {result['backend']} ({result['reason']})"
    console.print(told, markup=False, highlight=False, soft_wrap=True)
    tell(made, write(made, page) if page else (), console)
    ceilings_told(console, result)


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


def report(result: dict[str, Any]) -> Report:
    """Of the raw result."""
    each = result["operators"]
    names = list(dict.fromkeys(one["name"] for one in each))

    def curves(value: str) -> list[Series]:
        return [
            Series(name, [(float(one["rows"]), one[value]) for one in each if one["name"] == name])
            for name in names
        ]

    rows = Axis("rows", "", "log")
    about = ("model", "backend", "build", "reason", "quantization", "kv_cache_dtype", "threads")
    return Report(
        title=f"Operators of {result['model']}, backend {result['backend']}",
        provenance=origin(**{name: result[name] for name in about}),
        summary=[
            Figure("time over floor, median", [median([one["ratio"] for one in each])], "times", "lower"),
            Figure("time over floor, worst", [max(one["ratio"] for one in each)], "times", "lower"),
        ],
        tables=[
            Table(
                "Operators",
                ["", "rows", "median", "floor", "time / floor"],
                [[one["name"], one["rows"], one["seconds"], one["floor"], one["ratio"]] for one in each],
                ["", "", "s", "s", ""],
            )
        ],
        plots=[
            Lines(
                "Time over its floor", rows, Axis("time / floor"), curves("ratio"), [Mark("y", 1.0, "floor")]
            ),
            Lines("Time", rows, Axis("time", "s", "log"), curves("seconds")),
        ],
        definitions={
            "time": "Of one call; the median of many. Weights and KV come from memory, as they do in a step.",
            "floor": "The least time in which the machine computes the operator's arithmetic or moves its "
            "bytes, whichever is longer, by the ceilings measured just before and after.",
        },
        raw=msgspec.to_builtins(result),
    )
