"""The `pillion bench traffic` command, and the flags that it has in common with `pillion capacity`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from pillion.config import Config
from pillion.ops import stack
from pillion.ops.options import Command, config_options, configure, fail

F = TypeVar("F", bound=Callable[..., Any])

POSITIVE = click.FloatRange(0, min_open=True)
DRAWN = ("cv", "longest", "seed", "requests")
"""Flags of what is drawn, beside the trace and the lengths."""

_COMMON = (
    click.option("--url", metavar="URL", help="server to measure  [the stack that runs here]"),
    click.option("--model", metavar="NAME", help="model to ask  [the first that the server names]"),
    click.option(
        "--metrics",
        multiple=True,
        metavar="URL",
        help="metrics of its schedulers, for scheduling delays  [found on this machine]",
    ),
    click.option(
        "--trace",
        metavar="FILE",
        help="CSV with num_prefill_tokens, num_decode_tokens and, to be replayed as it was, arrived_at",
    ),
    click.option(
        "--tenant-keys",
        metavar="FILE",
        help='send requests of a trace\'s tenants with keys of their own: TOML, a line `tenant = "key"` each',
    ),
    click.option("--lengths", metavar="NAME", help="draw requests of this shape instead  [chats]"),
    click.option("--cv", default=1.0, type=POSITIVE, metavar="X", help="of drawn gaps; 1: Poisson  [1]"),
    click.option(
        "--longest",
        type=click.IntRange(2),
        metavar="N",
        help="leave out requests with more tokens, prompt and output",
    ),
    click.option("--seed", default=1, metavar="N", help="of all that is drawn  [1]"),
    click.option(
        "--ttft", default=3.0, type=POSITIVE, metavar="X", help="target of the first token, seconds  [3]"
    ),
    click.option(
        "--tbt",
        default=0.2,
        type=POSITIVE,
        metavar="X",
        help="target of the 99th percentile of gaps, seconds  [0.2]",
    ),
    click.option(
        "--drain",
        default=60.0,
        type=POSITIVE,
        metavar="X",
        help="seconds after the last is due; what runs then is unfinished  [60]",
    ),
    click.option("--output", metavar="FILE", help="write the report here: FILE.html, .json and .csv"),
)


def common(function: F) -> F:
    for option in reversed(_COMMON):
        function = option(function)
    return function


def address(config: Config, url: str | None) -> stack.Address:
    """URL and key: those given, else of the stack that runs here. Ends the process without one."""
    try:
        return stack.address(config, url)
    except stack.StackError as error:
        fail(str(error), 1)


@click.command("traffic", cls=Command)
@click.option(
    "--rate",
    "rates",
    multiple=True,
    type=POSITIVE,
    metavar="X",
    help="requests a second, at random; several are measured in turn  [as in the trace]",
)
@click.option("--scale", default=1.0, type=POSITIVE, metavar="X", help="replay so many times as fast  [1]")
@click.option("--requests", type=click.IntRange(1), metavar="N", help="at most so many  [all of a trace]")
@click.option(
    "--seconds", type=POSITIVE, metavar="X", help="those due within so many seconds  [60 without a trace]"
)
@click.option("--repeats", default=1, type=click.IntRange(1), metavar="N", help="for confidence  [1]")
@common
@config_options("bench traffic")
def traffic(config: str | None, **flags: Any) -> None:
    """Send a trace, or requests at given rates, whether or not the server keeps up, and see what clients see.

    Prompts are token ids; those of one prefix_group begin alike. All is counted over the requests sent.
    """
    try:
        import uvloop

        from pillion.ops.bench.keys import tenant_keys
        from pillion.ops.bench.offered import NoLoad, offered
        from pillion.ops.bench.server import NoServer
        from pillion.ops.bench.traffic import measure
        from pillion.ops.measure import Slo
        from pillion.ops.report import NoReport, tell, write
        from pillion.ops.traces import BadTrace
    except ModuleNotFoundError as error:
        fail(f"{error.name} is not installed; pip install 'pillion[bench]'", 1)
    own = (
        "url",
        "model",
        "metrics",
        "trace",
        "tenant_keys",
        "lengths",
        "ttft",
        "tbt",
        "drain",
        "output",
        "rates",
        "repeats",
    )
    chosen = {name: flags.pop(name) for name in own}
    limits = {name: flags.pop(name) for name in (*DRAWN, "scale", "seconds")}
    loaded = configure(flags, config)
    try:
        load = offered(chosen["trace"], chosen["lengths"], chosen["rates"], limits=limits)
        at = address(loaded, chosen["url"])
        how = {name: chosen[name] for name in ("repeats", "drain", "model", "metrics")}
        how |= {"api_key": at.key, "certificate": at.certificate, "keys": tenant_keys(chosen["tenant_keys"])}
        slo = Slo(chosen["ttft"], chosen["tbt"])
        report = uvloop.run(measure(loaded, at.url, load, chosen["rates"], slo=slo, **how))
        tell(report, write(report, Path(chosen["output"])) if chosen["output"] else ())
    except (NoServer, NoLoad, BadTrace, NoReport) as error:
        fail(str(error), 1)
