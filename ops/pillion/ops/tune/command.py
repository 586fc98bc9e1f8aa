"""`pillion tune`: which settings keep a latency target."""

from typing import Any

import click

from pillion.ops.options import Command, config_options, configure, fail
from pillion.ops.simulate.stage_options import stage_options

_REQUESTS = 300


@click.command("tune", cls=Command)
@click.option(
    "--cost-model", required=True, metavar="FILE", help="how long steps take, as `pillion profile` keeps it"
)
@click.option(
    "--lengths",
    multiple=True,
    metavar="NAME",
    help="a class of traffic; may be given several times  [chats, summaries, azure_code]",
)
@click.option(
    "--requests",
    default=_REQUESTS,
    type=click.IntRange(10),
    metavar="N",
    help=f"of each simulation  [{_REQUESTS}]",
)
@click.option("--seed", default=1, metavar="N", help="of the requests and of steps' times  [1]")
@stage_options
@click.option("--output", metavar="FILE", help="write the report here: FILE.html, .json and .csv")
@config_options("tune")
def tune(
    cost_model: str,
    lengths: tuple[str, ...],
    requests: int,
    seed: int,
    stages: int,
    stage_latency: float,
    output: str | None,
    config: str | None,
    **flags: Any,
) -> None:
    """Find the token budget and sequences that keep P99 TBT.

    Within --slo-tbt. Simulates the real scheduler, kept full by each class of traffic, with budgets that
    are multiples of the tile. Of all that keep the target, the one that does most wins.
    --max-num-batched-tokens and --max-num-seqs are the most that are tried.
    """
    try:
        from pathlib import Path

        import msgspec
        from rich.console import Console

        from pillion.config.tree import DEFAULT_SLO_TBT
        from pillion.ops.report import NoReport, tell, write
        from pillion.ops.traces import LENGTHS
        from pillion.ops.tune.run import CLASSES, Asked, NoSetting, report, verdict
        from pillion.ops.tune.run import tune as run
        from pillion.steptime import CostModelError, load
    except ModuleNotFoundError as error:
        fail(f"{error.name} is not installed; pip install 'pillion[bench,scheduler]'", 1)
    if unknown := [name for name in lengths if name not in LENGTHS]:
        fail(f"--lengths {unknown[0]} is unknown; there is {', '.join(sorted(LENGTHS))}", 2)
    loaded = configure(flags, config)
    scheduler = loaded.scheduler
    asked = Asked(
        classes=lengths or CLASSES,
        tbt=scheduler.slo_tbt or DEFAULT_SLO_TBT,
        requests=requests,
        seed=seed,
        stages=stages,
        stage_latency=stage_latency,
        most_tokens=scheduler.max_num_batched_tokens or 2048,
        most_sequences=scheduler.max_num_seqs,
    )
    try:
        model = load(Path(cost_model))
        with Console(stderr=True).status("") as status:
            tuned = run(loaded, model, asked, status.update)
        made = report(model, asked, tuned)
        # Its note comes last, behind the files.
        tell(msgspec.structs.replace(made, notes=[]), write(made, output) if output else ())
    except (NoSetting, CostModelError, NoReport) as error:
        fail(str(error), 1)
    click.echo(verdict(tuned))
