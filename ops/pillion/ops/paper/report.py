"""The tables as a report: the paper's figure beside ours, and each pair as a point."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import median

from pillion.ops.report import Axis, Figure, Mark, Points, Report, Series
from pillion.ops.report import Table as Shown
from pillion.ops.report.origin import origin

from .page import constants
from .table import Cell, Table

Pairs = list[tuple[float, float]]
_FEW = 2  # pairs, of which a plot would say no more than the table


def report(tables: Mapping[str, Table]) -> Report:
    known = {table.title: pairs(table) for table in tables.values()}
    return Report(
        title="SARATHI and Sarathi-Serve again: the papers beside Pillion's simulation",
        provenance=origin() | {"command": "python -m pillion.ops.paper"},
        summary=list(_figures(known)),
        tables=[
            Shown(
                table.title,
                _names(table),
                [list(row) for row in table.rows],
                note=f"{table.setup} What differs: {table.differs}",
            )
            for table in tables.values()
        ],
        plots=[
            Points(
                title,
                Axis("the paper", "", "log"),
                Axis("ours", "", "log"),
                [Series(name, points) for name, points in each.items()],
                marks=[Mark("xy", 1.0, "equal")],
            )
            for title, each in known.items()
            if sum(map(len, each.values())) > _FEW
        ],
        notes=["steps' times are computed, not measured: what policies do to each other, not how fast it is"],
        definitions={
            "off": "|ours / paper - 1|, the median of a table's pairs.",
            "a pair": "A figure that a paper gives as a number, and ours. One with a / is two.",
        }
        | {what: f"{value} ({source})" for what, value, source in constants()},
        raw={"tables": {name: asdict(table) for name, table in tables.items()}},
    )


def _figures(known: Mapping[str, Mapping[str, Pairs]]) -> Iterator[Figure]:
    for title, each in known.items():
        off = [abs(ours / paper - 1) for points in each.values() for paper, ours in points]
        if off:
            yield Figure(f"off, {title}", [round(median(off), 6)], "share", "lower")


def pairs(table: Table) -> dict[str, Pairs]:
    """The paper's figures and ours, both positive, by what they are of."""
    found: dict[str, Pairs] = {}
    for paper, ours in _columns(table.columns):
        points: Pairs = []
        for row in table.rows:
            theirs, own = _numbers(row[paper]), _numbers(row[ours])
            if len(theirs) == len(own):
                points += [(a, b) for a, b in zip(theirs, own, strict=True) if a > 0 and b > 0]
        found[table.columns[paper].removesuffix("paper").rstrip(", ")] = points
    return found


def _columns(names: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Where a paper's figures are and where ours: under the same name, else in the next column."""
    for place, name in enumerate(names):
        if name.endswith("paper"):
            own = name.removesuffix("paper") + "ours"
            yield place, names.index(own, place) if own in names[place:] else place + 1


def _names(table: Table) -> list[str]:
    """The columns', none twice."""
    names = list(table.columns)
    for paper, ours in _columns(table.columns):
        names[ours] = names[paper].removesuffix("paper") + "ours"
    return names


def _numbers(cell: Cell) -> list[float]:
    """None where it is not a number, or several between slashes."""
    if not isinstance(cell, str):
        return [] if cell is None else [cell]
    try:
        return [float(each) for each in cell.split(" / ")]
    except ValueError:
        return []
