"""Two reports side by side: what differs, and whether the repeats say that it really does."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from pillion.ops.measure import difference, mean_of

from . import words
from .model import Figure, Lines, Plot, Points, Report, Series, Table

_LETTERS = "AB"
_OF_A_RUN = ("date", "seconds simulated", "seconds that took", "most memory, MiB", "command: --output")
"""What every run has of its own, whatever was asked."""


def compared(before: Report, after: Report, names: tuple[str, str] = ("A", "B")) -> Report:
    """A report on both. Figures are matched by name, curves by their plot's title.

    `names`: what reports of one title are called.
    """
    ours, theirs = ({one.name: one for one in each.summary} for each in (before, after))
    figures = [*ours, *(name for name in theirs if name not in ours)]
    rows = [list(_row(name, ours.get(name), theirs.get(name))) for name in figures]
    clear = [row[0] for row in rows if row[5] in ("better", "worse", "differs")]
    notes = [
        f"{letter}: {note}"
        for letter, each in zip(_LETTERS, (before, after), strict=True)
        for note in each.notes
    ]
    if all(len(one.values) < 2 for one in (*ours.values(), *theirs.values())):
        notes.insert(0, "without repeats on both sides nobody can say which differences are chance")
    title = f"{before.title} (A) beside {after.title} (B)"
    if before.title == after.title:
        title = f"{before.title}: {names[0]} (A) beside {names[1]} (B)"
    return Report(
        title=title,
        provenance={"A": before.provenance, "B": after.provenance},
        summary=[],
        tables=[
            Table(
                "Differences",
                ["", "A", "B", "B - A", "of A", "verdict"],
                [list(row) for row in rows],
                note="± is half of the 95 % interval over repeats (Student's t, Welch's for differences). A "
                "verdict is given where the interval of the difference leaves out 0.",
            ),
            *_asked(before.provenance, after.provenance),
        ],
        plots=[plot for first in before.plots for plot in _joined(first, after.plots)],
        notes=notes,
        definitions=before.definitions | after.definitions,
        raw={"clear": clear},
    )


def _asked(before: dict[str, Any], after: dict[str, Any]) -> Iterator[Table]:
    """What was not the same about how they were made."""
    ours, theirs = (_flat(each) for each in (before, after))
    names = [*ours, *(name for name in theirs if name not in ours)]
    rows = [[name, ours.get(name, words.NONE), theirs.get(name, words.NONE)] for name in names]
    if differing := [row for row in rows if row[1] != row[2] and row[0] not in _OF_A_RUN]:
        yield Table("Asked differently", ["", "A", "B"], [list(row) for row in differing])


def _flat(provenance: dict[str, Any]) -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in provenance.items():
        inside = _flags(value) if name == "command" else value.items() if isinstance(value, dict) else ()
        flat |= {f"{name}: {key}": _text(each) for key, each in inside} if inside else {name: _text(value)}
    return flat


def _flags(command: Any) -> list[tuple[str, str]]:
    """With their values, so that of two long commands only what differs is told."""
    flags: list[tuple[str, str]] = []
    for word in str(command).split():
        if word.startswith("-") and not word[1:2].isdigit():
            flag, _, value = word.partition("=")
            flags.append((flag, value))
        elif flags:
            flags[-1] = flags[-1][0], f"{flags[-1][1]} {word}".strip()
    told: dict[str, str] = {}
    for flag, value in flags:
        told[flag] = f"{told[flag]}, {value}" if flag in told else value or "given"
    return [*told.items()]


def _text(value: Any) -> str:
    return words.NONE if value is None else str(value)


def _row(name: str, ours: Figure | None, theirs: Figure | None) -> Iterator[str]:
    yield name
    known = [words.figure(one) if one else words.NONE for one in (ours, theirs)]
    yield from known
    if not (ours and theirs and ours.values and theirs.values):
        yield from (words.NONE, words.NONE, "")
        return
    more, half = difference(ours.values, theirs.values)
    told = words.between(more, half, ours.unit)
    yield ("+" if more > 0 else "") + (told.replace(" %", " points") if ours.unit == "share" else told)
    base = mean_of(ours.values)[0]
    yield f"{more / abs(base):+.1%}".replace("%", " %") if base else words.NONE
    if half is None or abs(more) <= half:
        yield "" if half is None else "no clear difference"
    elif not ours.better:
        yield "differs"
    else:
        yield "better" if (more > 0) == (ours.better == "higher") else "worse"


def _joined(first: Plot, others: Sequence[Plot]) -> Iterator[Plot]:
    """Both plots' curves in one, where both have such a plot."""
    for other in others:
        if other.title == first.title and isinstance(first, Lines | Points) and type(other) is type(first):
            series = [
                Series(f"{letter} {each.name}".rstrip(), each.points, each.labels)
                for pair in zip_longest(first.series, other.series)
                for letter, each in zip(_LETTERS, pair, strict=True)
                if each is not None
            ]
            kind = type(first)
            yield kind(first.title, first.x, first.y, series, marks=first.marks, note=first.note)
