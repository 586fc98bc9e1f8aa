"""The command: light to import, as the help needs it."""

from typing import Any

import click

from pillion.ops.options import Command, config_options, configure, fail


@click.command("explain", cls=Command)
@click.argument("request", metavar="ID")
@click.option("--url", metavar="URL", help="server that answered it  [the stack that runs here]")
@click.option("--json", "as_json", is_flag=True, help="what the server tells, as JSON")
@click.option("--report", metavar="FILE", help="write it with plots here: FILE.html, .json and .csv")
@config_options("explain")
def explain(
    request: str, url: str | None, as_json: bool, report: str | None, config: str | None, **flags: Any
) -> None:
    """Tell why a request took so long.

    Its wait, its prompt, and the longest gap between its tokens. ID is the answer's `id`, or its
    x-request-id header. It is known while it runs, and as long after that as --journal-retention says.
    """
    from pillion.ops.explain.telling import run
    from pillion.ops.stack import StackError
    from pillion.ops.web import Refused, Unreachable

    try:
        told = run(configure(flags, config), request, url, as_json)
    except (StackError, Unreachable, Refused) as error:
        fail(str(error), 1)
    if report is not None:
        _write(told, report)


def _write(told: dict[str, Any], file: str) -> None:
    try:
        from pillion.ops.explain.drawing import report
        from pillion.ops.report import NoReport, write
    except ModuleNotFoundError as error:
        fail(f"{error.name} is not installed; pip install 'pillion[bench]'", 1)
    try:
        for path in write(report(told), file):
            click.echo(f"written: {path}", err=True)
    except NoReport as error:
        fail(str(error), 1)
