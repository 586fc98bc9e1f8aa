"""What a tool found out, for people and programs: one page that needs nothing else, JSON, CSV, a summary.

A `Report` is plain data. `write` makes its files, `tell` shows it in a terminal, `read` takes its JSON back.
"""

from .files import NoReport, read, write
from .model import Areas, Axis, Bars, Figure, Lines, Mark, Plot, Points, Report, Series, Table
from .tell import tell

__all__ = [
    "Areas",
    "Axis",
    "Bars",
    "Figure",
    "Lines",
    "Mark",
    "NoReport",
    "Plot",
    "Points",
    "Report",
    "Series",
    "Table",
    "read",
    "tell",
    "write",
]
