"""The parts of a report. All of it is plain data, which JSON holds as it is."""

from typing import Any, Literal

import msgspec

Cell = str | float | int | None
Unit = str
"""`s` is shown as ms or µs where it is small, `share` as per cent; any other is put behind the number."""


class Figure(msgspec.Struct, frozen=True):
    """One result. `values` has one of each repeat; `better` says which way is an improvement."""

    name: str
    values: list[float]
    unit: Unit = ""
    better: Literal["higher", "lower", ""] = ""


class Table(msgspec.Struct, frozen=True):
    """`units` has one of each column, or none at all. The first column names the row."""

    title: str
    columns: list[str]
    rows: list[list[Cell]]
    units: list[Unit] = []
    note: str = ""


class Axis(msgspec.Struct, frozen=True):
    """`tail` is for shares of a cumulative distribution: from 90 to 99 % is as far as from 99 to 99.9 %."""

    label: str
    unit: Unit = ""
    scale: Literal["linear", "log", "tail"] = "linear"


class Series(msgspec.Struct, frozen=True):
    """`labels`: one a point, shown beside it, or none."""

    name: str
    points: list[tuple[float, float]]
    labels: list[str] = []


class Mark(msgspec.Struct, frozen=True):
    """A line across a plot, as of a target. `xy` is y = value * x, where both axes are of one scale."""

    axis: Literal["x", "y", "xy"]
    value: float
    label: str


class Lines(msgspec.Struct, frozen=True, tag="lines"):
    title: str
    x: Axis
    y: Axis
    series: list[Series]
    marks: list[Mark] = []
    note: str = ""


class Points(msgspec.Struct, frozen=True, tag="points"):
    """A scatter. `best`: which corner is, to draw the front of what nothing else beats, as `high low`."""

    title: str
    x: Axis
    y: Axis
    series: list[Series]
    best: tuple[Literal["low", "high"], Literal["low", "high"]] | None = None
    marks: list[Mark] = []
    note: str = ""


class Areas(msgspec.Struct, frozen=True, tag="areas"):
    """Stacked, the first at the bottom. A row is where its span begins, in x, and a value of each name.

    `end`: where the last span does; else it is as wide as the one before.
    """

    title: str
    x: Axis
    y: Axis
    names: list[str]
    rows: list[tuple[float, list[float]]]
    marks: list[Mark] = []
    note: str = ""
    end: float | None = None


class Bars(msgspec.Struct, frozen=True, tag="bars"):
    """A histogram. A bar is from, to and how many."""

    title: str
    x: Axis
    y: Axis
    bars: list[tuple[float, float, float]]
    marks: list[Mark] = []
    note: str = ""


Plot = Lines | Points | Areas | Bars


class Report(msgspec.Struct, frozen=True):
    """`provenance`: what was run, on what, when. `notes`: what the figures are not, or not quite."""

    title: str
    provenance: dict[str, Any]
    summary: list[Figure]
    tables: list[Table] = []
    plots: list[Plot] = []
    notes: list[str] = []
    definitions: dict[str, str] = {}
    raw: dict[str, Any] = {}  # for programs; the page does not show it
