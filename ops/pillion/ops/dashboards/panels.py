"""What a dashboard is made of, and the PromQL that its panels share."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pillion.telemetry.names import Metric

WINDOW = "$__rate_interval"
CHOSEN = 'instance=~"$instance"'
"""Every selector has it, so that a dashboard can be narrowed to one process."""

Kind = Literal["lines", "stacked", "shares", "heatmap", "numbers"]


@dataclass(frozen=True, slots=True)
class Query:
    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """`advice`: what the panel shows, and what to do where it looks wrong. `unit`: Grafana's name of it."""

    title: str
    advice: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: Kind = "lines"
    width: int = 12  # of 24


@dataclass(frozen=True, slots=True)
class Dashboard:
    """`of`: a metric that each of the dashboard's processes has, for the list to choose from."""

    uid: str
    title: str
    about: str
    of: Metric
    panels: tuple[Panel, ...]


def select(name: Metric | str, *matchers: str) -> str:
    """The chosen processes' series of a metric."""
    series = name if isinstance(name, str) else name.name
    return f"{series}{{{','.join((*matchers, CHOSEN))}}}"


def rate(name: Metric | str, *matchers: str) -> str:
    """A second, of a counter or a part of a histogram."""
    return f"rate({select(name, *matchers)}[{WINDOW}])"


def total(expr: str, *by: str) -> str:
    return f"sum by ({', '.join(by)}) ({expr})" if by else f"sum({expr})"


def quantiles(metric: Metric, *points: float) -> tuple[Query, ...]:
    """Over all chosen processes, from the histogram's buckets."""
    buckets = total(rate(f"{metric.name}_bucket"), "le")
    return tuple(Query(f"histogram_quantile({point:g}, {buckets})", f"p{100 * point:g}") for point in points)


def heat(metric: Metric) -> tuple[Query, ...]:
    """Observations of each bucket in each interval, for a heat map."""
    return (Query(total(f"increase({select(metric.name + '_bucket')}[{WINDOW}])", "le"), "{{le}}"),)


def mean(metric: Metric, *by: str) -> str:
    """Of a histogram's observations."""
    return f"{total(rate(metric.name + '_sum'), *by)} / {total(rate(metric.name + '_count'), *by)}"


def each(metrics: Iterable[tuple[Metric, str]]) -> tuple[Query, ...]:
    """Rates of several counters, each a line of its own."""
    return tuple(Query(total(rate(metric)), legend) for metric, legend in metrics)
