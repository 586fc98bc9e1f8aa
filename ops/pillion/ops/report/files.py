"""A report's files: `NAME.html` to look at, `NAME.json` to read back, `NAME.csv` for a spreadsheet."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import msgspec

from .model import Areas, Bars, Cell, Report
from .page import page

_ENDINGS = (".html", ".json", ".csv")


class NoReport(Exception):
    """It cannot be read or written. One line that says why."""


def write(report: Report, path: str | Path) -> list[Path]:
    """Makes the three files; `path` names any of them, or has no ending. Raises NoReport."""
    raw = msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"
    contents = (page(report).encode(), raw, table(report).encode())
    made = []
    try:
        for ending, content in zip(_ENDINGS, contents, strict=True):
            made.append(_stem(path).with_name(_stem(path).name + ending))
            made[-1].parent.mkdir(parents=True, exist_ok=True)
            made[-1].write_bytes(content)
    except OSError as error:
        raise NoReport(f"cannot write the report: {error}") from None
    return made


def read(path: str | Path) -> Report:
    """From its JSON; any of its three files may be named. Raises NoReport."""
    stem = _stem(path)
    try:
        return msgspec.json.decode(stem.with_name(stem.name + ".json").read_bytes(), type=Report)
    except OSError as error:
        raise NoReport(f"cannot read the report: {error}") from None
    except msgspec.DecodeError as error:
        raise NoReport(f"{path} is no report: {error}") from None


def _stem(path: str | Path) -> Path:
    path = Path(path)
    return path.with_suffix("") if path.suffix in _ENDINGS else path


def table(report: Report) -> str:
    """All figures, tables and plots as CSV, one value a line."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("part", "title", "row", "column", "value"))
    rows.writerows(_lines(report))
    return text.getvalue()


def _lines(report: Report) -> Iterator[tuple[str, str, Cell, str, Cell]]:
    for one in report.summary:
        for repeat, value in enumerate(one.values, 1):
            yield "summary", one.name, repeat, one.unit, value
    for told in report.tables:
        for row in told.rows:
            for column, cell in zip(told.columns[1:], row[1:], strict=True):
                yield "table", told.title, row[0], column, cell
    for plot in report.plots:
        if isinstance(plot, Areas):
            for at, values in plot.rows:
                for name, value in zip(plot.names, values, strict=True):
                    yield "plot", plot.title, at, name, value
        elif isinstance(plot, Bars):
            for low, high, count in plot.bars:
                yield "plot", plot.title, low, f"to {high:g}", count
        else:
            for series in plot.series:
                for a, b in series.points:
                    yield "plot", plot.title, a, series.name, b
