"""`pillion compare`."""

from pathlib import Path

import click

from pillion.ops.options import Command, fail


@click.command("compare", cls=Command)
@click.argument("before", metavar="A", type=click.Path(dir_okay=False))
@click.argument("after", metavar="B", type=click.Path(dir_okay=False))
@click.option("--output", metavar="FILE", help="write the comparison here: FILE.html, .json and .csv")
def compare(before: str, after: str, output: str | None) -> None:
    """Set two reports side by side.

    With what the repeats say of each difference.
    """
    try:
        from pillion.ops.report import NoReport, read, tell, write
        from pillion.ops.report.compare import compared
    except ModuleNotFoundError as error:
        fail(f"{error.name} is not installed; pip install 'pillion[bench]'", 1)
    try:
        report = compared(read(before), read(after), (Path(before).name, Path(after).name))
        tell(report, write(report, output) if output else ())
    except NoReport as error:
        fail(str(error), 1)
