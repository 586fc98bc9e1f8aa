"""`ops/paper`: the command."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import click
import msgspec

from pillion.ops.paper import bubbles, sarathi, serve
from pillion.ops.paper.capacities import capacities
from pillion.ops.paper.page import page
from pillion.ops.paper.report import report
from pillion.ops.paper.table import Table
from pillion.ops.report import NoReport, tell, write

TABLES: dict[str, Callable[[], Table]] = {
    "iteration": sarathi.iteration,
    "decode_cost": sarathi.decode_cost,
    "chunk_sizes": sarathi.chunk_sizes,
    "tiles": sarathi.tiles,
    "riding": sarathi.riding,
    "gains": sarathi.gains,
    "budget_example": sarathi.budget_example,
    "pipelines": bubbles.pipelines,
    "ablation": serve.ablation,
    "capacities": capacities,
}


@click.command("ops/paper")
@click.option(
    "--only", multiple=True, type=click.Choice(list(TABLES)), help="make this table alone, several times"
)
@click.option("--docs", type=click.Path(path_type=Path, file_okay=False), default="docs", show_default=True)
@click.option("--report", "to", metavar="FILE", help="write a report here: FILE.html, .json and .csv")
def main(only: tuple[str, ...], docs: Path, to: str | None) -> None:
    """Simulates the tables of SARATHI and Sarathi-Serve; writes DOCS/paper.md and DOCS/figures/paper.json.

    Tables that are not asked for are taken from the JSON as it was.
    """
    path = docs / "figures" / "paper.json"
    known = (
        msgspec.json.decode(path.read_bytes(), type=dict[str, Table], strict=False) if path.exists() else {}
    )
    for name in only or TABLES:
        start = time.perf_counter()
        known[name] = TABLES[name]()
        click.echo(f"{name}: {time.perf_counter() - start:.0f} s")
    tables = {name: known[name] for name in TABLES if name in known}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({name: asdict(table) for name, table in tables.items()}, indent=1) + "\n")
    (docs / "paper.md").write_text(page(tables.values()))
    if to:
        made = report(tables)
        try:
            tell(made, write(made, to))
        except NoReport as error:
            raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    main()
