"""Two reports side by side: what differs, and whether the repeats say that it really does."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from pillion.ops.measure import difference, mean_of

from . import words
from .model import Figure, Lines, Plot, Points, Report, Series, Table

_LETTERS = "AB"


def compared(before: Report, after: Report) -> Report:
    """A report on both. Figures are matched by name, curves by their plot's title."""
    ours, theirs = ({one.name: one for one in each.summary} for each in (before, after))
    names = [*ours, *(name for name in theirs if name not in ours)]
    rows = [list(_row(name, ours.get(name), theirs.get(name))) for name in names]
    clear = [row[0] for row in rows if row[5] in ("better", "worse", "differs")]
    notes = [
        f"{letter}: {note}"
        for letter, each in zip(_LETTERS, (before, after), strict=True)
        for note in each.notes
    ]
    if all(len(one.values) < 2 for one in (*ours.values(), *theirs.values())):
        notes.insert(0, "without repeats on both sides nobody can say which differences are chance")
    return Report(
        title=f"{before.title} (A) beside {after.title} (B)",
        provenance={"A": before.provenance, "B": after.provenance},
        summary=[],
        tables=[
            Table(
                "Differences",
                ["", "A", "B", "B - A", "of A", "verdict"],
                [list(row) for row in rows],
                note="± is half of the 95 % interval over repeats (Student's t, Welch's for differences). A "
                "verdict is given where the interval of the difference leaves out 0.",
            )
        ],
        plots=[plot for first in before.plots for plot in _joined(first, after.plots)],
        notes=notes,
        definitions=before.definitions | after.definitions,
        raw={"clear": clear},
    )


def _row(name: str, ours: Figure | None, theirs: Figure | None) -> Iterator[str]:
    yield name
    known = [words.figure(one) if one else words.NONE for one in (ours, theirs)]
    yield from known
    if not (ours and theirs and ours.values and theirs.values):
        yield from (words.NONE, words.NONE, "")
        return
    more, half = difference(ours.values, theirs.values)
    yield ("+" if more > 0 else "") + words.between(more, half, ours.unit)
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
