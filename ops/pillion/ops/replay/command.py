"""The command: light to import, as the help needs it."""

import click

from pillion.ops.options import Command, fail


@click.command("replay", cls=Command)
@click.argument("files", type=click.Path(exists=True), nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="the result as JSON, on stdout; a line for each file")
def replay(files: tuple[str, ...], as_json: bool) -> None:
    """Replay a scheduler's recording and compare every plan.

    It was made with --record; exit code 1 at the first plan that differs. FILES are its parts, any of
    them, or their folder. Each is replayed from what it begins with; where the part before was replayed
    too, that is compared as well.
    """
    from pathlib import Path

    from pillion.ops.replay.telling import run
    from pillion.scheduler.recorded import NoRecording

    try:
        raise SystemExit(run([Path(file) for file in files], as_json))
    except (NoRecording, OSError) as error:
        fail(str(error), 2)
