"""Plots are SVG; what they show is where it belongs."""

import itertools
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from pillion.ops.report import Areas, Axis, Bars, Lines, Mark, Points, Report, Series, write
from pillion.ops.report.picture import main
from pillion.ops.report.scale import Scale
from pillion.ops.report.svg import draw, front, legend

SECONDS = Axis("TBT", "s", "log")
SHARE = Axis("share", "", "tail")
CURVE = [(0.01, 0.5), (0.1, 0.9), (0.2, 0.999), (0.4, 1.0)]


def elements(plot: Any, kind: str) -> list[ET.Element]:
    return [each for each in ET.fromstring(draw(plot)).iter() if kind in each.get("class", "").split()]


def texts(plot: Any) -> list[str]:
    return [each.text or "" for each in ET.fromstring(draw(plot)).iter("text")]


def test_a_curve_s_tail_is_stretched_and_its_target_is_marked() -> None:
    plot = Lines("TBT", SECONDS, SHARE, [Series("a <b>", CURVE)], [Mark("x", 0.2, "SLO & more")])
    (line,) = elements(plot, "line")
    heights = [float(pair.split()[1]) for pair in line.attrib["d"].lstrip("M").split("L")]
    # 50 to 90 % is log10(5) of a tenth, 90 to 99.9 % two, and 1 is at the top.
    steps = [before - after for before, after in itertools.pairwise(heights)]
    assert steps[1] / steps[0] == pytest.approx(2 / 0.699, rel=0.01) and heights[-1] == min(heights)
    assert {"50 %", "90 %", "99 %", "99.9 %", "10 ms", "100 ms", "SLO & more", "a <b>"} <= set(texts(plot))
    assert len(elements(plot, "mark")) == 1


def test_a_line_of_equals_goes_through_the_points_that_are() -> None:
    both = Axis("a", "s", "log")
    plot = Points(
        "x", both, both, [Series("", [(0.01, 0.01), (0.1, 0.2), (1, 1)])], marks=[Mark("xy", 1.0, "=")]
    )
    (mark,) = elements(plot, "mark")
    (x0, y0), (x1, y1) = (map(float, pair.split()) for pair in mark.attrib["d"].lstrip("M").split("L"))
    off = []
    for dot in elements(plot, "dot")[:3]:
        x, y = float(dot.attrib["cx"]), float(dot.attrib["cy"])
        off.append(abs(y - (y0 + (y1 - y0) * (x - x0) / (x1 - x0))))
    assert max(off[0], off[2]) < 0.3 and off[1] > 10


def test_a_picture_needs_nothing_else(tmp_path: Path) -> None:
    plot = Lines("TBT & more", SECONDS, SHARE, [Series("a <b>", CURVE), Series("c", CURVE)])
    report = Report("r", {}, [], plots=[plot])
    write(report, tmp_path / "r")
    done = CliRunner().invoke(main, [str(tmp_path / "r"), "TBT & more", str(tmp_path / "p.svg")])
    assert done.exit_code == 0, done.output
    root = ET.fromstring((tmp_path / "p.svg").read_text())
    shown = {each.text for each in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"TBT & more", "a <b>", "c", "99 %"} <= shown
    assert "http" not in (tmp_path / "p.svg").read_text().replace("http://www.w3.org/2000/svg", "")
    wrong = CliRunner().invoke(main, [str(tmp_path / "r"), "other", str(tmp_path / "q.svg")])
    assert wrong.exit_code == 1 and "no plot 'other'; there is TBT & more" in wrong.output


def test_areas_are_stacked() -> None:
    plot = Areas(
        "steps", Axis("time", "s"), Axis("tokens"), ["decode", "prefill"], [(0.0, [10, 90]), (1.0, [10, 0])]
    )
    lower, upper = elements(plot, "area")

    def edges(path: ET.Element) -> list[float]:
        return [float(pair.split()[1]) for pair in path.attrib["d"].strip("MZ").split("L")]

    assert edges(lower)[0] == edges(upper)[-1]  # one begins where the other ends
    assert edges(lower)[0] == edges(lower)[2] and edges(upper)[0] < edges(upper)[2]
    assert "prefill 90" in texts(plot) and legend(plot) == ["decode", "prefill"]


def test_the_last_area_is_as_wide_as_the_one_before_or_as_is_said() -> None:
    def right(end: float | None) -> float:
        rows: list[tuple[float, list[float]]] = [(0.0, [1.0]), (4.0, [1.0])]
        plot = Areas("steps", Axis("time", "s"), Axis("tokens"), ["decode"], rows, end=end)
        *_, last = elements(plot, "slice")
        return float(last.attrib["width"]) / sum(
            float(each.attrib["width"]) for each in elements(plot, "slice")
        )

    assert right(None) == pytest.approx(0.5, abs=0.01) and right(5.0) == pytest.approx(0.2, abs=0.01)


def test_bars_are_as_high_as_their_counts() -> None:
    plot = Bars("chunks", Axis("tokens"), Axis("chunks"), [(0.0, 64.0, 10.0), (64.0, 128.0, 5.0)])
    heights = [float(bar.attrib["height"]) for bar in elements(plot, "bar")]
    assert heights[0] == pytest.approx(2 * heights[1], abs=0.2) and "64 to 128" in texts(plot)


def test_the_front_is_what_nothing_beats_in_both() -> None:
    pairs = [(1.0, 2.0), (2.0, 5.0), (3.0, 4.0), (4.0, 6.0), (0.5, 1.0), (1.0, 1.5)]
    assert front(pairs, ("low", "high")) == [(0.5, 1.0), (1.0, 2.0), (2.0, 5.0), (4.0, 6.0)]
    assert front(pairs, ("low", "low")) == [(0.5, 1.0)]
    plot = Points("front", Axis("TTFT"), Axis("goodput"), [Series("a", pairs, ["one"])], ("low", "high"))
    assert len(elements(plot, "front")) == 1 and len(elements(plot, "hit")) == 6 and "one" in texts(plot)
    assert legend(plot) == []


@pytest.mark.parametrize("kind", [Lines, Points, Areas, Bars])
def test_what_has_nothing_to_show_says_so(kind: Any) -> None:
    empty = {"names": ["a"], "rows": []} if kind is Areas else {"bars" if kind is Bars else "series": []}
    assert texts(kind("none", Axis("a"), Axis("b"), **empty)) == ["nothing was seen of this"]


def test_a_long_series_is_thinned_and_keeps_its_ends() -> None:
    pairs = [(float(at), float(at % 7)) for at in range(50_000)]
    (line,) = elements(Lines("long", Axis("time", "s"), Axis("queue"), [Series("", pairs)]), "line")
    assert 500 < len(line.attrib["d"].split("L")) <= 700
    rows = [(a, [b]) for a, b in pairs]
    drawn = draw(Areas("long", Axis("time", "s"), Axis("queue"), ["queue"], rows))
    assert len(drawn) < 1_000_000


@given(
    st.lists(st.floats(0.0, 1e9), min_size=1, max_size=5),
    st.sampled_from(["linear", "log", "tail"]),
    st.sampled_from(["", "s", "share"]),
)
def test_every_value_and_every_tick_is_within_the_frame(values: list[float], kind: Any, unit: str) -> None:
    if kind == "tail":
        values = [value % 1.0 for value in values]
    scale = Scale.over(Axis("x", unit, kind), values, 10.0, 110.0, zero=True)
    ticks = scale.ticks()
    assert 1 <= len(ticks) <= 20 and scale.label
    for value in [*values, *(value for value, _ in ticks)]:
        assert 10.0 - 1e-6 <= scale.place(value) <= 110.0 + 1e-6
