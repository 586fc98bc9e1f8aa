"""A report's figures and tables in a terminal."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Column
from rich.table import Table as Grid
from rich.text import Text

from . import words
from .model import Cell, Report, Table

_WIDTHS = 120, 180
"""Columns where there is no terminal: as a rule, and for tables that need more."""


def tell(report: Report, files: Iterable[Path] = (), console: Console | None = None) -> None:
    console = console or Console()
    grids = [(table, _grid(table)) for table in report.tables]
    if not console.is_terminal:
        most = max((_needs(grid, console).maximum for _, grid in grids), default=0)
        console.width = min(max(_WIDTHS[0], most), _WIDTHS[1])
    console.print(Text(report.title, style="bold"))
    if report.summary:
        grid = Grid(Column(style="dim"), Column(justify="right"), box=None, show_header=False)
        for one in report.summary:
            grid.add_row(Text(one.name), words.figure(one))
        console.print(grid)
    for table, grid in grids:
        console.print()
        if _needs(grid, console).minimum <= console.width:
            console.print(grid)
            continue
        console.print(Text(table.title, style="italic"))
        for line in _rows(table):
            console.print(line)
    for note in report.notes:
        console.print(Text(f"! {note}", style="yellow"), soft_wrap=True)
    for path in files:
        console.print(Text(f"written: {path}", style="dim"), soft_wrap=True)


def _needs(grid: Grid, console: Console) -> Measurement:
    """The fewest columns in which no word is broken, and those for a line each row."""
    return Measurement.get(console, console.options.update_width(10_000), grid)


def _rows(table: Table) -> Iterator[Text]:
    """For a terminal that is too narrow for columns: each row as a sentence."""
    for row in table.rows:
        cells = zip(table.columns, _cells(table, row), strict=True)
        yield Text("  " + ", ".join(f"{name} {told}".strip() for name, told in cells))


def _cells(table: Table, row: list[Cell]) -> Iterator[str]:
    units = table.units or [""] * len(table.columns)
    return (words.quantity(cell, unit) for cell, unit in zip(row, units, strict=True))


def _grid(table: Table) -> Grid:
    columns = [Column(name, justify="right" if index else "left") for index, name in enumerate(table.columns)]
    grid = Grid(*columns, title=Text(table.title), title_justify="left", box=box.SIMPLE_HEAD)
    for row in table.rows:
        grid.add_row(*map(Text, _cells(table, row)))
    return grid
