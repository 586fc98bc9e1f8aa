"""`python -m pillion.ops.fidelity`: the same load to a running stack and to a simulation of it."""

from pathlib import Path
from typing import Any

import click
import msgspec
import uvloop

from pillion.config import Config, ConfigError
from pillion.modelfiles import ModelFileError
from pillion.ops.bench.offered import NoLoad, Offered, offered
from pillion.ops.bench.server import NoServer
from pillion.ops.bench.traffic import provenance
from pillion.ops.fidelity.run import Fidelity, Model, measure
from pillion.ops.fidelity.told import report
from pillion.ops.measure import Slo
from pillion.ops.options import config_options, configure, fail
from pillion.ops.profile import run as profile
from pillion.ops.profile import serve
from pillion.ops.profile.drive import ProfileError
from pillion.ops.report import NoReport, tell, write
from pillion.ops.rig import RigError
from pillion.ops.traces import BadTrace
from pillion.scheduler.recorded import NoRecording
from pillion.steptime import CostModelError, StepTime, load

ERRORS = (
    *(NoServer, NoLoad, BadTrace, CostModelError, NoReport, NoRecording),
    *(ProfileError, RigError, ModelFileError, ConfigError),
)


@click.command()
@click.option(
    "--cost-model", "cost_model", type=click.Path(path_type=Path), metavar="FILE",
    help="one for all repeats  [each repeat begins with a profile of its own]",
)  # fmt: skip
@click.option("--profile", "profiled", default=55.0, show_default=True, metavar="X", help="seconds of each")
@click.option("--served", default=45.0, show_default=True, metavar="X", help="seconds of its serving part")
@click.option(
    "--recordings", type=click.Path(path_type=Path), metavar="DIR",
    help="where the stack records (--record DIR): tells each run's pace, and simulates again at it",
)  # fmt: skip
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
            *("cost_model", "profiled", "served", "recordings", "trace", "lengths", "capacity", "shares"),
            *("seconds", "longest", "repeats", "seed", "ttft", "tbt", "output"),
        )
    }
    rates = [share * asked["capacity"] for share in asked["shares"]]
    limits = {name: asked[name] for name in ("seconds", "longest", "seed")}
    slo = Slo(asked["ttft"], asked["tbt"])
    try:
        load_ = offered(asked["trace"], asked["lengths"], rates, limits=limits)
        models = (
            profiles(asked["profiled"], asked["served"], asked["seed"])
            if asked["cost_model"] is None
            else always(load(asked["cost_model"]))
        )
        loaded = configure(flags, config)
        found = uvloop.run(measure(loaded, models, load_, rates, asked["repeats"], slo, asked["recordings"]))
        made = report(origin(found, load_, slo), found.runs)
        tell(made, write(made, asked["output"]) if asked["output"] else ())
    except ERRORS as error:
        fail(str(error), 1)


def always(model: StepTime) -> Model:
    async def given(config: Config, repeat: int) -> StepTime:
        return model

    return given


def profiles(seconds: float, served: float, seed: int) -> Model:
    """Each measured behind the repeat before it: the machine drifts."""

    async def measured(config: Config, repeat: int) -> StepTime:
        found = await profile.measure(config, seconds, seed + repeat, _quiet)
        model = found.model
        if served:
            model = (await serve.serve(config, model, served, seed + repeat, _quiet)).model
        click.echo(f"cost model {model.hash}: {model.error.median:.1%} off by the median", err=True)
        return model

    return measured


def _quiet(share: float, what: str) -> None:
    """Progress is told by runs."""


def origin(found: Fidelity, load_: Offered, slo: Slo) -> dict[str, Any]:
    models = {model.hash: msgspec.to_builtins(model) for model in found.models}
    return provenance(found.server, load_, slo) | {"cost models": list(models), "models": models}


if __name__ == "__main__":
    main()
