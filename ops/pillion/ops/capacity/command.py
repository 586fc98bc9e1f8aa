"""`pillion capacity`."""

from typing import Any

import click

from pillion.config import leaves
from pillion.ops.bench.traffic_command import DRAWN, POSITIVE, address, common
from pillion.ops.options import ONLY, Command, config_options, configure, fail
from pillion.ops.simulate.stage_options import stage_options

_SEARCH = ("start", "tolerance", "probes", "repeats", "drain")


@click.command("capacity", cls=Command)
@click.option(
    "--cost-model", metavar="FILE", help="simulate with this cost model, as `pillion profile` keeps it"
)
@click.option("--requests", type=click.IntRange(1), metavar="N", help="of each probe  [100; simulated 1000]")
@click.option(
    "--delay",
    default=2.0,
    type=POSITIVE,
    metavar="X",
    help="target of the median scheduling delay, seconds  [2]",
)
@click.option("--start", default=1.0, type=POSITIVE, metavar="X", help="first rate, requests a second  [1]")
@click.option(
    "--tolerance",
    default=0.05,
    type=POSITIVE,
    metavar="X",
    help="search until it is this near, as a share  [0.05]",
)
@click.option(
    "--probes", default=14, type=click.IntRange(2), metavar="N", help="most rates of one search  [14]"
)
@click.option(
    "--repeats", default=1, type=click.IntRange(1), metavar="N", help="searches with other requests  [1]"
)
@stage_options
@common
@config_options("capacity")
def capacity(config: str | None, **flags: Any) -> None:
    """Find the highest rate that keeps the latency targets.

    Of requests that come at random, with P99 TBT and the median scheduling delay within their targets. Of
    a running server; or, with --cost-model, of the settings, by simulation. All probes have the same
    requests in the same order, only further apart or closer.
    """
    try:
        import uvloop
        from msgspec.structs import replace

        from pillion.ops.bench.keys import tenant_keys
        from pillion.ops.bench.offered import NoLoad, offered
        from pillion.ops.bench.server import NoServer
        from pillion.ops.capacity.find import Asked, NoCapacity
        from pillion.ops.capacity.live import live
        from pillion.ops.capacity.search import Targets
        from pillion.ops.capacity.simulated import simulated
        from pillion.ops.measure import Slo
        from pillion.ops.report import NoReport, tell, write
        from pillion.ops.simulate.asked import idle
        from pillion.ops.traces import BadTrace
        from pillion.steptime import CostModelError
    except ModuleNotFoundError as error:
        fail(f"{error.name} is not installed; pip install 'pillion[bench,scheduler]'", 1)
    cost, url, output, keys = (flags.pop(name) for name in ("cost_model", "url", "output", "tenant_keys"))
    trace, lengths, ttft, tbt, delay = (
        flags.pop(name) for name in ("trace", "lengths", "ttft", "tbt", "delay")
    )
    how = {name: flags.pop(name) for name in _SEARCH}
    server = {name: flags.pop(name) for name in ("model", "metrics")}
    limits = {name: flags.pop(name) for name in DRAWN}
    stages, latency = flags.pop("stages"), flags.pop("stage_latency")
    if cost is not None and url is not None:
        fail("give --url or --cost-model, not both", 2)
    if cost is None and (stages > 1 or latency):
        fail("stages are simulated: give --cost-model with --pipeline-parallel-size", 2)
    given = {name for name in ONLY["simulate"] if flags[name] not in (None, ())}
    idle_flags = [leaf.flag for leaf in leaves() if leaf.name in given]
    if cost is None and idle_flags:
        fail(f"{idle_flags[0]} means nothing to a running server; it goes with --cost-model", 2)
    if cost is not None and keys is not None:
        fail("--tenant-keys means nothing to a simulation, which goes by the tenants' names", 2)
    limits["requests"] = limits["requests"] or (100 if cost is None else 1000)
    asked = Asked(Targets(tbt, delay), Slo(ttft, tbt), **how)
    loaded = configure(flags, config)
    try:
        load = offered(trace, lengths, (asked.start,), limits=limits)
        if cost is None:
            at = address(loaded, url)
            server |= {"api_key": at.key, "certificate": at.certificate, "keys": tenant_keys(keys)}
            report = uvloop.run(live(loaded, at.url, load, asked, **server))
        else:
            report = uvloop.run(simulated(loaded, cost, load, asked, stages, latency))
            report = replace(report, notes=[*report.notes, *idle(loaded, admission=False)])
        tell(report, write(report, output) if output else ())
    except (NoCapacity, NoServer, NoLoad, BadTrace, CostModelError, NoReport) as error:
        fail(str(error), 1)
