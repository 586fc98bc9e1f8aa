"""`pillion simulate`: what a configuration would do with a load, without the machine."""

from typing import Any

import click

from pillion.ops.options import Command, config_options, configure, fail
from pillion.ops.simulate.stage_options import stage_options

_POSITIVE = click.FloatRange(0, min_open=True)


@click.command("simulate", cls=Command)
@click.option(
    "--cost-model", required=True, metavar="FILE", help="how long steps take, as `pillion profile` keeps it"
)
@click.option("--trace", metavar="FILE", help="replay this trace (CSV), or draw requests from its rows")
@click.option("--lengths", metavar="NAME", help="draw lengths of this name  [openchat_sharegpt4]")
@click.option(
    "--arrivals",
    type=click.Choice(("poisson", "gamma", "closed")),
    help="how requests arrive  [as in the trace; poisson with --rate; closed with --clients]",
)
@click.option("--rate", type=_POSITIVE, metavar="X", help="requests a second")
@click.option(
    "--cv", type=_POSITIVE, metavar="X", help="gamma: standard deviation of the gaps over their mean  [2]"
)
@click.option(
    "--clients", type=click.IntRange(1), metavar="N", help="closed: clients, each with one request at a time"
)
@click.option(
    "--think", type=click.FloatRange(0), metavar="X", help="closed: seconds from an answer to the next  [0]"
)
@click.option("--scale", type=_POSITIVE, metavar="X", help="replay the trace so many times as fast  [1]")
@click.option(
    "--requests", type=click.IntRange(1), metavar="N", help="how many  [1000; all of a replayed trace]"
)
@click.option(
    "--seconds",
    type=_POSITIVE,
    metavar="X",
    help="end then, on the virtual clock; what still runs is unfinished  [when all have ended]",
)
@click.option(
    "--admission/--no-admission",
    default=False,
    help="admission before a single replica; several always have it  [off]",
)
@click.option(
    "--residuals/--no-residuals",
    default=True,
    help="steps scatter about the cost model as measured ones did  [on]",
)
@click.option(
    "--learn",
    is_flag=True,
    help="schedulers learn how long steps take, as where nobody profiled  [they know the cost model]",
)
@stage_options
@click.option("--seed", default=1, metavar="N", help="of all that is drawn  [1]")
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=1,
    metavar="N",
    help="with as many seeds, from --seed on  [1]",
)
@click.option("--output", metavar="FILE", help="write the report here: FILE.html, .json and .csv")
@config_options("simulate")
def simulate(config: str | None, **flags: Any) -> None:
    """Simulate a load: real scheduling, steps by a cost model.

    The scheduler, admission and routing are the real ones; takes the settings of all. What counts as
    good: the first token within --slo-ttft (2 s where it is not given), gaps within --slo-tbt.
    """
    try:
        from pillion.config import ConfigError
        from pillion.ops.report import NoReport
        from pillion.ops.simulate.asked import LOAD, CannotSimulate, run
        from pillion.ops.traces import BadTrace
        from pillion.steptime import CostModelError
    except ModuleNotFoundError as error:
        fail(f"{error.name} is not installed; pip install 'pillion[bench,scheduler]'", 1)
    load = {name: flags.pop(name) for name in LOAD}
    try:
        run(configure(flags, config), **load)
    except (CannotSimulate, BadTrace, CostModelError, ConfigError, NoReport) as error:
        fail(str(error), 1)
