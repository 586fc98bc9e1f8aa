"""A report's figures and tables in a terminal."""

from collections.abc import Iterable
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Column
from rich.table import Table as Grid
from rich.text import Text

from . import words
from .model import Report, Table


def tell(report: Report, files: Iterable[Path] = (), console: Console | None = None) -> None:
    console = console or Console()
    if not console.is_terminal:
        console.width = 120
    console.print(Text(report.title, style="bold"))
    if report.summary:
        grid = Grid(Column(style="dim"), Column(justify="right"), box=None, show_header=False)
        for one in report.summary:
            grid.add_row(Text(one.name), words.figure(one))
        console.print(grid)
    for table in report.tables:
        console.print()
        console.print(_grid(table))
    for note in report.notes:
        console.print(Text(f"! {note}", style="yellow"), soft_wrap=True)
    for path in files:
        console.print(Text(f"written: {path}", style="dim"), soft_wrap=True)


def _grid(table: Table) -> Grid:
    columns = [Column(name, justify="right" if index else "left") for index, name in enumerate(table.columns)]
    grid = Grid(*columns, title=Text(table.title), title_justify="left", box=box.SIMPLE_HEAD)
    units = table.units or [""] * len(table.columns)
    for row in table.rows:
        grid.add_row(*(Text(words.quantity(cell, unit)) for cell, unit in zip(row, units, strict=True)))
    return grid
