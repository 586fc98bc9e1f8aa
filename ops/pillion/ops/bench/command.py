"""What the `pillion bench` commands do with their flags: one line for what cannot be measured."""

import os
from pathlib import Path

from pillion.config import Config, ConfigError
from pillion.ops import stack
from pillion.ops.options import fail
from pillion.ops.role import SPINS


def load(
    config: Config,
    urls: tuple[str, ...],
    cases: tuple[str, ...],
    seed: int,
    repeats: int,
    model: str | None,
    output: str | None,
    report: str | None,
    metrics: tuple[str, ...],
    threads: int | None,
) -> None:
    """Measures the servers at `urls`, else the stack of this name. Ends the process where it cannot."""
    try:
        from pillion.ops.bench.cases import CASES, Failed
        from pillion.ops.bench.ceilings import NoCeilings
        from pillion.ops.bench.load import Options, run
        from pillion.ops.bench.server import NoServer
        from pillion.ops.report import NoReport
    except ModuleNotFoundError as error:
        fail(f"{error.name} is not installed; pip install 'pillion[bench]'", 1)
    try:
        server = stack.address(config, urls[0] if urls else None)
    except stack.StackError as error:
        fail(str(error), 1)
    urls = urls or (server.url,)
    if len(metrics) > len(urls):
        fail("give one --metrics for each --url, in the same order", 2)
    options = Options(
        urls, cases or tuple(CASES), seed, repeats, model, server.key, metrics, threads, server.certificate
    )
    try:
        run(config, options, Path(output) if output else None, report)
    except (NoServer, Failed, NoCeilings, NoReport) as error:
        fail(str(error), 1)


def kernels(
    config: Config,
    rows: tuple[int, ...],
    contexts: tuple[int, ...],
    seconds: float,
    output: str | None,
    report: str | None,
) -> None:
    """Measures a backend's operators. Ends the process where it cannot."""
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # as the executor has it; read when torch is loaded
    try:
        from pillion.kernels.select import NoBackend
        from pillion.modelfiles import ModelFileError
        from pillion.ops.bench.ceilings import NoCeilings
        from pillion.ops.bench.kernels import run
        from pillion.ops.report import NoReport
    except ModuleNotFoundError as error:
        fail(f"{error.name} is not installed; pip install 'pillion[bench,executor]'", 1)
    try:
        run(config, rows, contexts, seconds, Path(output) if output else None, report)
    except (NoBackend, NoCeilings, ModelFileError, NoReport) as error:
        fail(str(error), 1)


def quality(config: Config, text: str | None, output: str | None, report: str | None) -> None:
    """Measures what a form of the weights or of KV costs. Ends the process where it cannot."""
    try:
        from pillion.modelfiles import ModelFileError
        from pillion.ops.bench.quality import TEXT, run
        from pillion.ops.report import NoReport
    except ModuleNotFoundError as error:
        fail(f"{error.name} is not installed; pip install 'pillion[bench,executor,gateway]'", 1)
    try:
        run(config, Path(text) if text else TEXT, Path(output) if output else None, report)
    except (ModelFileError, ConfigError, NoReport, OSError, UnicodeDecodeError) as error:
        fail(str(error), 1)
