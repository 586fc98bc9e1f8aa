"""A report as one HTML page: no script, nothing from outside, light and dark, ready for print."""

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from . import words
from .model import Cell, Figure, Plot, Report, Table, Unit
from .svg import draw, legend

STYLE = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")


def page(report: Report) -> str:
    return "\n".join(_parts(report)) + "\n"


def _parts(report: Report) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    yield f"<title>{escape(report.title)}</title>\n<style>\n{STYLE}</style>"
    yield f"<h1>{escape(report.title)}</h1>"
    told = ("command", "date", "version")
    if line := " · ".join(str(report.provenance[name]) for name in told if name in report.provenance):
        yield f'<p class="from">{escape(line)}</p>'
    if report.notes:
        yield f'<ul class="notes">{"".join(f"<li>{escape(note)}</li>" for note in report.notes)}</ul>'
    if report.summary:
        yield f'<dl class="figures">{"".join(map(_figure, report.summary))}</dl>'
    if report.plots:
        yield f'<div class="plots">{"".join(map(_plot, report.plots))}</div>'
    for table in report.tables:
        yield _table(table)
    if report.definitions:
        yield f"<h2>What is meant</h2>\n{_pairs(report.definitions)}"
    if report.provenance:
        yield f"<h2>Where it is from</h2>\n{_pairs(report.provenance)}"
    yield "</html>"


def _figure(one: Figure) -> str:
    shown, _, spread = words.figure(one).partition(" ± ")
    more = f" <small>± {escape(spread)}</small>" if spread else ""
    return f"<div><dt>{escape(one.name)}</dt><dd>{escape(shown)}{more}</dd></div>"


def _plot(plot: Plot) -> str:
    names = "".join(
        f'<span><i class="s{index % 8}"></i>{escape(name)}</span>' for index, name in enumerate(legend(plot))
    )
    note = f'<p class="note">{escape(plot.note)}</p>' if plot.note else ""
    return (
        f'<figure><figcaption>{escape(plot.title)}{note}</figcaption><div class="legend">{names}</div>'
        f"{draw(plot)}</figure>"
    )


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    units = table.units or [""] * len(table.columns)
    rows = "".join(f"<tr>{''.join(map(_cell, row, units))}</tr>" for row in table.rows)
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f'<h2>{escape(table.title)}</h2>\n<div class="table"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{note}"
    )


def _cell(value: Cell, unit: Unit) -> str:
    return f"<td>{escape(words.quantity(value, unit))}</td>"


def _pairs(pairs: dict[str, Any]) -> str:
    items = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(_shown(value))}</dd>" for name, value in pairs.items()
    )
    return f'<dl class="pairs">{items}</dl>'


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value))
    return words.NONE if value is None else str(value)
