"""The command: light to import, as the help needs it."""

from typing import TYPE_CHECKING

import click

from pillion.ops.options import Command, fail

if TYPE_CHECKING:
    from pathlib import Path


@click.command("replay", cls=Command)
@click.argument("files", type=click.Path(exists=True), nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="the result as JSON, on stdout; a line for each file")
@click.option("--report", metavar="FILE", help="write what steps carried here: FILE.html, .json and .csv")
def replay(files: tuple[str, ...], as_json: bool, report: str | None) -> None:
    """Replay a scheduler's recording and compare every plan.

    It was made with --record; exit code 1 at the first plan that differs. FILES are its parts, any of
    them, or their folder. Each is replayed from what it begins with; where the part before was replayed
    too, that is compared as well.
    """
    from pathlib import Path

    from pillion.ops.replay.telling import run
    from pillion.scheduler.recorded import NoRecording

    paths = [Path(file) for file in files]
    try:
        raise SystemExit(run(paths, as_json) if report is None else _drawn(paths, as_json, report))
    except (NoRecording, OSError) as error:
        fail(str(error), 2)


def _drawn(paths: "list[Path]", as_json: bool, file: str) -> int:
    """Raises NoRecording, OSError."""
    try:
        from pillion.ops.replay.drawing import report
        from pillion.ops.replay.telling import run
        from pillion.ops.replay.watching import Watch
        from pillion.ops.report import NoReport, write
    except ModuleNotFoundError as error:
        fail(f"{error.name} is not installed; pip install 'pillion[bench,scheduler]'", 2)
    watch = Watch()
    code = run(paths, as_json, watch)
    try:
        for path in write(report(watch), file):
            click.echo(f"written: {path}", err=True)
    except NoReport as error:
        fail(str(error), 2)
    return code
