"""What the tests of dashboards and rules read in PromQL: which series an expression takes, which labels."""

import re
from collections.abc import Iterable

from pillion.telemetry import names

OF_SCRAPES = {"job", "instance"}
OF_OTHERS: dict[str, set[str]] = {
    name: set()
    for name in (
        "up",
        "process_resident_memory_bytes",
        "process_cpu_seconds_total",
        "process_start_time_seconds",
    )
}
"""What Prometheus and the client library bring for each process."""

_STRING = re.compile(r'"[^"]*"')
_SELECTOR = re.compile(r"([a-zA-Z_][a-zA-Z0-9_:]*)\s*\{([^}]*)\}")
_GROUPED = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_:]*")
_WORDS = {
    *(
        "sum",
        "avg",
        "count",
        "max",
        "rate",
        "increase",
        "changes",
        "absent",
        "time",
        "avg_over_time",
        "offset",
    ),
    *("histogram_quantile", "and", "or", "unless", "bool"),
}


def known() -> dict[str, set[str]]:
    """Every series that can be scraped, with its labels."""
    return OF_OTHERS | series_of(names.METRICS)


def series_of(metrics: Iterable[names.Metric]) -> dict[str, set[str]]:
    """A metric's series, a histogram's with their suffixes, with their labels."""
    series: dict[str, set[str]] = {}
    for metric in metrics:
        labels = set(metric.labels)
        if metric.kind == "histogram":
            series |= {f"{metric.name}_{part}": labels for part in ("count", "sum")}
            series[f"{metric.name}_bucket"] = labels | {"le"}
        else:
            series[metric.name] = labels
    return series


def used(expr: str) -> dict[str, set[str]]:
    """Series names in an expression, each with the labels that are asked of it. Labels of a grouping are
    asked of the expression as a whole, under the name "".
    """
    text = _STRING.sub('""', expr).replace("$__rate_interval", "5m")
    found: dict[str, set[str]] = {"": set()}
    for labels in _GROUPED.findall(text):
        found[""] |= {label.strip() for label in labels.split(",")}
    text = _GROUPED.sub(" ", text)
    for name, matchers in _SELECTOR.findall(text):
        found.setdefault(name, set()).update(re.findall(r"(\w+)\s*[=!]", matchers))
    text = re.sub(r"\[[^\]]*\]|\boffset\s+\w+", " ", _SELECTOR.sub(" ", text))
    for name in _NAME.findall(re.sub(r"\b\d[\w.]*", " ", text)):
        if name not in _WORDS:
            found.setdefault(name, set())
    return found


def problems(expr: str, series: dict[str, set[str]]) -> list[str]:
    """Names and labels in the expression that `series` lacks."""
    found = used(expr)
    grouped = found.pop("")
    unknown = [f"no metric {name}" for name in found if name not in series]
    there = {name: series[name] | OF_SCRAPES for name in found if name in series}
    unknown += [
        f"{name} has no label {label}" for name in there for label in sorted(found[name] - there[name])
    ]
    return unknown + [f"no label {label}" for label in sorted(grouped - set().union(*there.values()))]
