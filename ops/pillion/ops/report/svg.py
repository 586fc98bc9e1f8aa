"""Plots as SVG that takes its colours from the page: classes `s0` to `s7` for series, no script.

What a point stands for is shown while the pointer is on it, by the page's style alone.
"""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from typing import assert_never

from .model import Areas, Axis, Bars, Lines, Mark, Plot, Points
from .scale import Scale
from .words import quantity

WIDTH, HEIGHT = 640, 340
LEFT, TOP, RIGHT, BOTTOM = 78, 16, 18, 46
COLOURS = 8
_HOVERED = 60  # points of a series that tell what they are
_PLACES = 700  # of a series, at most: more are not seen apart

Pairs = Sequence[tuple[float, float]]


def draw(plot: Plot) -> str:
    """One `svg` element. A plot without a value says so."""
    height, body = drawn(plot)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(plot.title)}">'
        f"{''.join(body)}</svg>"
    )


def drawn(plot: Plot) -> tuple[int, list[str]]:
    """Its height, and what is in it."""
    match plot:
        case Lines():
            body = list(_lines(plot))
        case Points():
            body = list(_points(plot))
        case Areas():
            body = list(_areas(plot))
        case Bars():
            body = list(_bars(plot))
        case _:
            assert_never(plot)
    if not body:
        body = [_text(WIDTH / 2, 36, "nothing was seen of this", "middle", "name")]
    return HEIGHT if len(body) > 1 else 60, body


def legend(plot: Plot) -> list[str]:
    """The names of its series, by colour; none where one says nothing."""
    names = plot.names if isinstance(plot, Areas) else []
    if isinstance(plot, Lines | Points):
        names = [each.name for each in plot.series]
    return names if len(names) > 1 or isinstance(plot, Areas) else []


# --- the kinds -------------------------------------------------------------------------------------


def _lines(plot: Lines) -> Iterator[str]:
    pairs = [pair for series in plot.series for pair in series.points]
    if not pairs:
        return
    x, y = _scales(plot.x, plot.y, pairs, plot.marks)
    yield from _frame(x, y, plot.marks)
    for index, series in enumerate(plot.series):
        places = [(x.place(a), y.place(b)) for a, b in _thinned(series.points, _PLACES)]
        yield f'<path class="line s{index % COLOURS}" d="{_path(places)}"/>'
        if len(series.points) <= 24:
            yield from (_dot(*place, index) for place in places)
    for index, series in enumerate(plot.series):
        for a, b in _thinned(series.points, _HOVERED):
            yield _tip(x, y, (a, b), series.name, index)


def _points(plot: Points) -> Iterator[str]:
    pairs = [pair for series in plot.series for pair in series.points]
    if not pairs:
        return
    x, y = _scales(plot.x, plot.y, pairs, plot.marks)
    yield from _frame(x, y, plot.marks)
    if plot.best:
        places = [(x.place(a), y.place(b)) for a, b in front(pairs, plot.best)]
        yield f'<path class="front" d="{_path(places)}"/>'
    for index, series in enumerate(plot.series):
        for number, (a, b) in enumerate(series.points):
            yield _dot(x.place(a), y.place(b), index, 4.5)
            if number < len(series.labels):
                right = x.place(a) > WIDTH - 150
                yield _text(
                    x.place(a) + (-9 if right else 9), y.place(b) - 7, series.labels[number],
                    "end" if right else "start", "label",
                )  # fmt: skip
    for index, series in enumerate(plot.series):
        yield from (_tip(x, y, pair, series.name, index) for pair in series.points)


def front(pairs: Pairs, best: tuple[str, str]) -> list[tuple[float, float]]:
    """Those that none beats in both, by x. `best` says of each axis whether low or high is."""
    signs = [1 if way == "low" else -1 for way in best]
    found: list[tuple[float, float]] = []
    for a, b in sorted(set(pairs), key=lambda pair: (pair[0] * signs[0], pair[1] * signs[1])):
        if not found or b * signs[1] < found[-1][1] * signs[1]:
            found.append((a, b))
    return sorted(found)


def _areas(plot: Areas) -> Iterator[str]:
    if not plot.rows:
        return
    rows = plot.rows[:: -(-len(plot.rows) // _PLACES)]
    sums = [(at, sum(values)) for at, values in rows]
    width = rows[-1][0] - rows[-2][0] if len(rows) > 1 else 1.0
    end = rows[-1][0] + width if plot.end is None else plot.end
    x, y = _scales(plot.x, plot.y, [*sums, (end, 0.0)], plot.marks)
    yield from _frame(x, y, plot.marks)
    below = [0.0] * len(rows)
    for index in range(len(plot.names)):
        above = [low + values[index] for low, (_, values) in zip(below, rows, strict=True)]
        edges = [at for at, _ in rows]
        upper = _stairs([*zip(edges, above, strict=True)], end)
        lower = _stairs([*zip(edges, below, strict=True)], end)
        outline = [(x.place(a), y.place(b)) for a, b in [*upper, *reversed(lower)]]
        yield f'<path class="area s{index % COLOURS}" d="{_path(outline)}Z"/>'
        below = above
    for number, (at, values) in enumerate(rows):
        left = x.place(at)
        right = x.place(rows[number + 1][0] if number + 1 < len(rows) else end)
        words = [quantity(at, plot.x.unit)] + [
            f"{name} {quantity(value, plot.y.unit)}" for name, value in zip(plot.names, values, strict=True)
        ]
        yield _slice(left, right, words)


def _bars(plot: Bars) -> Iterator[str]:
    if not plot.bars:
        return
    pairs = [(edge, count) for low, high, count in plot.bars for edge in (low, high)]
    x, y = _scales(plot.x, plot.y, [*pairs, (pairs[0][0], 0.0)], plot.marks)
    yield from _frame(x, y, plot.marks)
    bottom = y.place(y.low)
    for low, high, count in plot.bars:
        left, right, top = x.place(low), x.place(high), y.place(count)
        size = f'width="{max(right - left - 1, 0.6):.1f}" height="{bottom - top:.1f}"'
        yield f'<rect class="bar s0" x="{left:.1f}" y="{top:.1f}" {size}/>'
        span = f"{quantity(low, plot.x.unit)} to {quantity(high, plot.x.unit)}"
        yield _slice(left, right, [span, quantity(count, plot.y.unit)])


# --- what they are made of -------------------------------------------------------------------------


def _scales(x: Axis, y: Axis, pairs: Pairs, marks: Sequence[Mark]) -> tuple[Scale, Scale]:
    def all_of(place: int, axis: str) -> list[float]:
        return [*(pair[place] for pair in pairs), *(mark.value for mark in marks if mark.axis == axis)]

    return (
        Scale.over(x, all_of(0, "x"), LEFT, WIDTH - RIGHT, zero=x.label.startswith("time")),
        Scale.over(y, all_of(1, "y"), HEIGHT - BOTTOM, TOP, zero=True, room=0.05),
    )


def _frame(x: Scale, y: Scale, marks: Sequence[Mark]) -> Iterator[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for value, words in y.ticks():
        at = y.place(value)
        yield f'<path class="grid" d="M{LEFT} {at:.1f}H{right}"/>{_text(LEFT - 8, at + 4, words, "end")}'
    for value, words in x.ticks():
        at = x.place(value)
        yield f'<path class="tick" d="M{at:.1f} {bottom}v4"/>{_text(at, bottom + 17, words)}'
    yield f'<path class="axis" d="M{LEFT} {bottom}H{right}"/>'
    yield _text((LEFT + right) / 2, HEIGHT - 6, x.label, "middle", "name")
    turned = f"translate(12 {(TOP + bottom) / 2:.1f}) rotate(-90)"
    yield f'<text class="name" text-anchor="middle" transform="{turned}">{escape(y.label)}</text>'
    for mark in marks:
        if mark.axis == "x":
            at = x.place(mark.value)
            yield f'<path class="mark" d="M{at:.1f} {TOP}V{bottom}"/>'
            late = at > (LEFT + right) * 0.7
            yield _text(at + (-6 if late else 6), TOP + 11, mark.label, "end" if late else "start", "marked")
        elif mark.axis == "xy":
            low, high = max(x.low, y.low / mark.value), min(x.high, y.high / mark.value)
            if low < high:
                ends = [(x.place(a), y.place(a * mark.value)) for a in (low, high)]
                yield f'<path class="mark" d="{_path(ends)}"/>'
                yield _text(ends[1][0] - 14, ends[1][1] + 8, mark.label, "end", "marked")
        else:
            at = y.place(mark.value)
            yield f'<path class="mark" d="M{LEFT} {at:.1f}H{right}"/>'
            yield _text(right - 2, at - 5, mark.label, "end", "marked")


def _tip(x: Scale, y: Scale, pair: tuple[float, float], name: str, index: int) -> str:
    a, b = x.place(pair[0]), y.place(pair[1])
    share = y.axis.scale == "tail"
    words = [
        *([name] if name else []),
        f"{x.axis.label}: {quantity(pair[0], x.axis.unit)}",
        f"{y.axis.label}: {f'{pair[1] * 100:.4g} %' if share else quantity(pair[1], y.axis.unit)}",
    ]
    return (
        f'<g class="hover"><circle class="hit" cx="{a:.1f}" cy="{b:.1f}" r="9"/>'
        f"{_dot(a, b, index, 4.5)}{_box(a, b, words)}</g>"
    )


def _slice(left: float, right: float, words: Sequence[str]) -> str:
    tall = HEIGHT - BOTTOM - TOP
    return (
        f'<g class="hover"><rect class="hit" x="{left:.1f}" y="{TOP}" width="{max(right - left, 0.5):.1f}" '
        f'height="{tall}"/><rect class="slice" x="{left:.1f}" y="{TOP}" width="{max(right - left, 0.5):.1f}" '
        f'height="{tall}"/>{_box((left + right) / 2, TOP + 60, words)}</g>'
    )


def _box(a: float, b: float, words: Sequence[str]) -> str:
    """What the pointer is on; inside the picture, whichever corner the point is in."""
    wide, tall = 14 + 6.3 * max(map(len, words)), 10 + 16 * len(words)
    left = a - wide - 10 if a + wide + 12 > WIDTH else a + 10
    top = min(max(b - tall - 6, 2), HEIGHT - tall - 2)
    lines = "".join(_text(left + 8, top + 17 + 16 * row, text, "start") for row, text in enumerate(words))
    return (
        f'<g class="tip"><rect x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{tall}" rx="5"/>'
        f"{lines}</g>"
    )


def _dot(a: float, b: float, index: int, radius: float = 3) -> str:
    return f'<circle class="dot s{index % COLOURS}" cx="{a:.1f}" cy="{b:.1f}" r="{radius}"/>'


def _text(a: float, b: float, words: str, anchor: str = "middle", kind: str = "") -> str:
    name = f' class="{kind}"' if kind else ""
    return f'<text{name} x="{a:.1f}" y="{b:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _path(places: Pairs) -> str:
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in places) if places else ""


def _stairs(pairs: Pairs, end: float) -> list[tuple[float, float]]:
    """Each value holds until the next begins, the last until `end`."""
    return [edge for (a, b), (c, _) in pairwise([*pairs, (end, 0.0)]) for edge in ((a, b), (c, b))]


def _thinned(points: Pairs, most: int) -> list[tuple[float, float]]:
    """At most so many, the first and the last among them."""
    if len(points) <= most:
        return list(points)
    return [points[round(index * (len(points) - 1) / (most - 1))] for index in range(most)]
