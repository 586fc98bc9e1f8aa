"""What the `pillion bench` commands do with their flags: one line for what cannot be measured."""

from pathlib import Path

from pillion.config import Config
from pillion.ops import stack
from pillion.ops.options import fail


def load(
    config: Config,
    urls: tuple[str, ...],
    cases: tuple[str, ...],
    seed: int,
    repeats: int,
    model: str | None,
    output: str | None,
    metrics: tuple[str, ...],
    threads: int | None,
) -> None:
    """Measures the servers at `urls`, else the stack of this name. Ends the process where it cannot."""
    try:
        from pillion.ops.bench.cases import CASES, Failed
        from pillion.ops.bench.ceilings import NoCeilings
        from pillion.ops.bench.load import Options, run
        from pillion.ops.bench.server import NoServer
    except ModuleNotFoundError as error:
        fail(f"{error.name} is not installed; pip install 'pillion[bench]'", 1)
    keys = config.gateway.api_key
    if not urls:
        here = stack.running(config)
        if here is None:
            fail(stack.absent(config), 1)
        urls, keys = (stack.url(here),), keys or here.gateway.api_key
    if len(metrics) > len(urls):
        fail("give one --metrics for each --url, in the same order", 2)
    key = keys[0] if keys else None
    options = Options(urls, cases or tuple(CASES), seed, repeats, model, key, metrics, threads)
    try:
        run(config, options, Path(output) if output else None)
    except (NoServer, Failed, NoCeilings) as error:
        fail(str(error), 1)
