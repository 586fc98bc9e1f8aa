"""`ops/chaos`: the command."""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import click

from pillion.ops.chaos import report, schedule
from pillion.ops.chaos.run import Options, run
from pillion.ops.chaos.words import words
from pillion.ops.rig import Rig, RigError


@click.command("ops/chaos", context_settings={"ignore_unknown_options": True, "max_content_width": 110})
@click.option("--streams", default=100, show_default=True, help="requests that run at any time")
@click.option("--kills", default=50, show_default=True, help="how many blows")
@click.option(
    "--blows",
    default=",".join(schedule.WEIGHTS),
    show_default=True,
    help="SIGKILL, SIGSTOP for some seconds, FLUSHALL of Redis",
)
@click.option("--seed", default=1, show_default=True, help="of requests and blows")
@click.option("--services", default=",".join(schedule.ROLES), show_default=True, help="who is struck")
@click.option("--output-tokens", default=120, show_default=True, help="the most tokens of an answer")
@click.option("--rolling", is_flag=True, help="instead of kills: SIGTERM to one process after the other")
@click.option(
    "--gateways", type=click.IntRange(1, 2), default=1, show_default=True,
    help="2: one beside the stack's, to which clients go where that is gone",
)  # fmt: skip
@click.option("--output", type=click.Path(path_type=Path), help="raw result, JSON; the log goes beside it")
@click.argument("up", nargs=-1, type=click.UNPROCESSED, metavar="[-- FLAGS OF UP]")
def main(
    streams: int, kills: int, blows: str, seed: int, services: str, output_tokens: int, rolling: bool,
    gateways: int, output: Path | None, up: tuple[str, ...],
) -> None:  # fmt: skip
    """Kills and stops the processes of a stack of its own and empties its Redis, at random, and compares
    every stream, token for token, with an undisturbed run. Exit code 1 on any difference. Prints Markdown.
    What follows `--` goes to `pillion up`; with `--replicas 2` those of either replica are struck."""
    roles = [role.strip() for role in services.split(",") if role.strip()]
    if unknown := sorted(set(roles) - set(schedule.ROLES)):
        raise click.BadParameter(
            f"{unknown[0]}; there is {', '.join(schedule.ROLES)}", param_hint="--services"
        )
    try:
        kinds = schedule.kinds(blows)
        storm = schedule.rolling(roles) if rolling else schedule.blows(seed, kills, roles, kinds)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--blows") from None
    with tempfile.TemporaryDirectory(prefix="pillion-chaos-") as state:
        rig = Rig(Path(state), *up, log=output.with_suffix(".log") if output else None)
        raw = asyncio.run(_main(Options(streams, seed, output_tokens, storm, gateways), rig))
    if output is not None:
        output.write_text(json.dumps(raw, indent=1) + "\n")
    click.echo(words(raw))
    raise SystemExit(int(bool(raw["differences"] or raw["faults"])))


async def _main(options: Options, rig: Rig) -> dict[str, Any]:
    """The raw result."""
    try:
        record = await run(options, rig, lambda text: click.echo(text, err=True))
    except RigError as broken:
        raise click.ClickException(str(broken)) from None
    finally:
        code = await asyncio.to_thread(rig.end)
    if any(blow.kind != "term" for blow in options.blows):
        record.faults += report.missed(record)
    if code != 0:
        record.faults.append(f"`pillion up` ended with {code}, not 0")
    return report.raw(record, rig.said)


if __name__ == "__main__":
    main(prog_name=main.name)
