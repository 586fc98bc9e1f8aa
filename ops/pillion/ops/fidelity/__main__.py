"""`python -m pillion.ops.fidelity`: the same load to a running stack and to a simulation of it."""

from pathlib import Path
from typing import Any

import click
import uvloop

from pillion.ops.bench.offered import NoLoad, offered
from pillion.ops.bench.server import NoServer
from pillion.ops.fidelity.run import measure
from pillion.ops.measure import Slo
from pillion.ops.options import config_options, configure, fail
from pillion.ops.report import NoReport, tell, write
from pillion.ops.traces import BadTrace
from pillion.steptime import CostModelError, load


@click.command()
@click.option("--cost-model", "cost_model", required=True, type=click.Path(path_type=Path), metavar="FILE")
@click.option("--trace", metavar="FILE", help="draw requests from the rows of this trace")
@click.option("--lengths", metavar="NAME", help="draw lengths of this name  [chats]")
@click.option("--capacity", required=True, type=float, metavar="X", help="requests a second")
@click.option(
    "--share", "shares", multiple=True, type=float, default=(0.5, 0.75, 0.85, 0.95), show_default=True,
    help="of the capacity, several times",
)  # fmt: skip
@click.option("--seconds", default=60.0, show_default=True, help="in which requests are due")
@click.option("--longest", type=int, metavar="N", help="leave longer requests out, tokens")
@click.option("--repeats", default=3, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--ttft", default=2.0, show_default=True, help="target, seconds")
@click.option("--tbt", default=0.15, show_default=True, help="target, seconds")
@click.option("--output", metavar="FILE", help="write the report here: FILE.html, .json and .csv")
@config_options("bench load")
def main(config: str | None, **flags: Any) -> None:
    """Measures a running stack and its simulation at shares of its capacity."""
    asked = {
        name: flags.pop(name)
        for name in (
            *("cost_model", "trace", "lengths", "capacity", "shares", "seconds", "longest", "repeats"),
            *("seed", "ttft", "tbt", "output"),
        )
    }
    rates = [share * asked["capacity"] for share in asked["shares"]]
    limits = {name: asked[name] for name in ("seconds", "longest", "seed")}
    slo = Slo(asked["ttft"], asked["tbt"])
    try:
        load_ = offered(asked["trace"], asked["lengths"], rates, limits=limits)
        model = load(asked["cost_model"])
        made = uvloop.run(measure(configure(flags, config), model, load_, rates, asked["repeats"], slo))
        tell(made, write(made, asked["output"]) if asked["output"] else ())
    except (NoServer, NoLoad, BadTrace, CostModelError, NoReport) as error:
        fail(str(error), 1)


if __name__ == "__main__":
    main()
