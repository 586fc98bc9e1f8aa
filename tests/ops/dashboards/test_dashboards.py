"""The dashboards show every metric, ask for nothing that is not there, and say what to do."""

import json
from string import ascii_uppercase

import pytest

from pillion.ops.dashboards.__main__ import rules
from pillion.ops.dashboards.grafana import DASHBOARDS, text
from pillion.ops.dashboards.panels import Dashboard, Panel
from pillion.telemetry import names
from tests.promql import known, problems, used

PANELS = [(dashboard, panel) for dashboard in DASHBOARDS for panel in dashboard.panels]


def shown() -> set[str]:
    """Names of series on any panel, a histogram's without its suffixes."""
    series = {name for _, panel in PANELS for query in panel.queries for name in used(query.expr)}
    return series | {name.rpartition("_")[0] for name in series}


def test_every_metric_is_on_a_panel() -> None:
    assert len(names.METRICS) > 40
    assert [metric.name for metric in names.METRICS if metric.name not in shown()] == []


def test_there_is_a_dashboard_for_each_layer() -> None:
    layers: dict[str, set[str]] = {}
    by_series = {metric.name: metric.layer for metric in names.METRICS}
    for dashboard, panel in PANELS:
        for query in panel.queries:
            for name in used(query.expr):
                layer = by_series.get(name) or by_series.get(name.rpartition("_")[0])
                if layer:
                    layers.setdefault(dashboard.uid, set()).add(layer)
    assert layers["pillion-user"] == {"gateway", "user"}
    assert layers["pillion-queue"] == {"queue"}
    assert layers["pillion-scheduler"] == {"scheduler"}
    assert layers["pillion-executor"] == {"executor", "process"}


@pytest.mark.parametrize(
    ("dashboard", "panel"), PANELS, ids=[f"{d.uid}-{p.title}".replace(" ", "_") for d, p in PANELS]
)
def test_a_panel_asks_for_what_is_there_and_says_what_to_do(dashboard: Dashboard, panel: Panel) -> None:
    assert [problem for query in panel.queries for problem in problems(query.expr, known())] == []
    assert panel.advice.endswith(".")
    assert len(panel.advice.split()) >= 8
    assert panel.queries
    assert all("$instance" in query.expr for query in panel.queries)


def test_the_parser_of_this_test_sees_what_is_wrong() -> None:
    series = {"a_total": {"kind"}}
    assert problems('sum by (kind) (rate(a_total{kind="x"}[5m])) / 2', series) == []
    assert problems("sum(rate(b_total[5m])) > 0.1 and a_total offset 6h", series) == ["no metric b_total"]
    assert problems('a_total{what="x"}', series) == ["a_total has no label what"]
    assert problems("sum by (what) (a_total)", series) == ["no label what"]


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.uid)
def test_the_file_is_a_dashboard(dashboard: Dashboard) -> None:
    document = json.loads(text(dashboard))
    assert len(document["panels"]) == len(dashboard.panels)
    titles = [panel["title"] for panel in document["panels"]]
    assert len(set(titles)) == len(titles)
    taken: set[tuple[int, int]] = set()
    for panel in document["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
        assert panel["description"]
        assert (
            "".join(target["refId"] for target in panel["targets"])
            == ascii_uppercase[: len(panel["targets"])]
        )
        assert {target["format"] for target in panel["targets"]} == {
            "heatmap" if panel["type"] == "heatmap" else "time_series"
        }
    assert {variable["name"] for variable in document["templating"]["list"]} == {"source", "instance"}
    assert {panel["datasource"]["uid"] for panel in document["panels"]} == {"${source}"}


def test_what_promtool_gets_are_all_queries() -> None:
    exprs = [rule["expr"] for group in rules()["groups"] for rule in group["rules"]]
    assert len(exprs) == sum(len(panel.queries) for _, panel in PANELS)
    assert not any("$" in expr for expr in exprs)
