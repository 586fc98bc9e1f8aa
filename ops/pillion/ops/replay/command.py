"""The command: light to import, as the help needs it."""

import click

from pillion.ops.options import Command, fail


@click.command("replay", cls=Command)
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--json", "as_json", is_flag=True, help="the result as JSON, on stdout")
def replay(file: str, as_json: bool) -> None:
    """Replay a scheduler's recording, made with --record; exit code 1 at the first plan that differs."""
    from pathlib import Path

    from pillion.ops.replay.telling import run
    from pillion.scheduler.recorded import NoRecording

    try:
        raise SystemExit(run(Path(file), as_json))
    except (NoRecording, OSError) as error:
        fail(f"{file}: {error}", 2)
