"""`pillion profile`: a cost model for this machine, measured on a live executor."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pillion.ops.options import Command, config_options, configure, fail

if TYPE_CHECKING:
    from pillion.config import Config


@click.command("profile", cls=Command)
@click.option(
    "--seconds",
    default=90.0,
    type=click.FloatRange(1, 600),
    metavar="X",
    help="about how long to measure; each step is measured at least twice  [90]",
)
@click.option(
    "--served",
    default=60.0,
    type=click.FloatRange(0, 600),
    metavar="X",
    help="then let a stack serve for so many seconds, and fit the model to what steps take beside the other "
    "services; 0: leave that out, as with --executor  [60]",
)
@click.option("--seed", default=1, metavar="N", help="seed of the steps and of their order  [1]")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, writable=True),
    metavar="FILE",
    help="where the cost model goes  [the cache folder, where schedulers look for it]",
)
@click.option(
    "--samples",
    type=click.Path(dir_okay=False, writable=True),
    metavar="FILE",
    help="keep every measured time here, a line of JSON for each step",
)
@click.option("--report", metavar="FILE", help="write the report here: FILE.html, .json and .csv")
@config_options("profile")
def profile(
    seconds: float,
    served: float,
    seed: int,
    output: str | None,
    samples: str | None,
    report: str | None,
    config: str | None,
    **flags: Any,
) -> None:
    """Measure how long this model's steps take here: a cost model.

    Steps with more and fewer prompt tokens, decodes and positions of context, in an order of chance and over
    and over, by an executor of its own or the one at --executor, if no scheduler has used it. The model's
    error is told on steps that it has not seen. Keep the machine free meanwhile.
    """
    loaded = configure(flags, config)
    if loaded.executor.executor is not None:
        served = 0.0
    _profile(
        loaded,
        seconds,
        served,
        seed,
        Path(output) if output else None,
        Path(samples) if samples else None,
        report,
    )


def _profile(
    config: "Config",
    seconds: float,
    served: float,
    seed: int,
    output: Path | None,
    samples: Path | None,
    report: str | None,
) -> None:
    try:
        import msgspec
        import uvloop
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        from pillion.config import ConfigError
        from pillion.modelfiles import ModelFileError
        from pillion.ops.profile.drive import ProfileError
        from pillion.ops.profile.run import measure
        from pillion.ops.profile.serve import serve
        from pillion.ops.profile.told import report as made_of
        from pillion.ops.report import NoReport, tell, write
        from pillion.ops.rig import RigError
        from pillion.steptime import save
        from pillion.steptime.place import hardware, place
        from pillion.telemetry import logs
    except ModuleNotFoundError as error:
        fail(f"{error.name} is not installed; pip install 'pillion[bench,scheduler,executor]'", 1)
    logs.setup("error", config.telemetry.log_format, "profile")
    console = Console(stderr=True)
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console, refresh_per_second=2, transient=True) as progress:
            task = progress.add_task("", total=1.0)
            found = uvloop.run(
                measure(
                    config,
                    seconds,
                    seed,
                    lambda share, what: progress.update(task, completed=share, description=what),
                )
            )
            model, fit = found.model, None
            if served:

                def show(share: float, what: str) -> None:
                    progress.update(task, completed=share, description=what)

                fit = uvloop.run(serve(config, model, served, seed, show))
                model = fit.model
        path = output or place(config.cache_path, found.model.provenance.fingerprint, hardware())
        save(model, path)
        if samples is not None:
            samples.parent.mkdir(parents=True, exist_ok=True)
            samples.write_bytes(b"\n".join(map(msgspec.json.encode, found.samples())) + b"\n")
        made = made_of(found, fit)
        tell(made, write(made, report) if report else ())
    except (ProfileError, RigError, ModelFileError, ConfigError, NoReport) as error:
        fail(str(error), 1)
    except OSError as error:
        fail(f"cannot write {error.filename}: {error.strerror}", 1)
    click.echo(f"cost model {model.hash}: {path}")
