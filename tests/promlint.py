"""What `promtool check metrics` objects to, so that it is looked at where there is no promtool.

Rules of https://prometheus.io/docs/practices/naming/ and of the exposition format: each family has help,
counters and they alone end in `_total`, no type in a name, base units written out, lower case without colons,
and the suffixes and labels of histograms and summaries are theirs alone.
"""

import re
from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

_TYPES = {"counter", "gauge", "histogram", "summary", "untyped"}
_BASE = {"seconds", "bytes", "celsius", "meters", "grams", "joules", "volts", "amperes", "ratio"}
_PREFIXES = (
    "nano",
    "micro",
    "milli",
    "centi",
    "kilo",
    "kibi",
    "mega",
    "mebi",
    "giga",
    "gibi",
    "tera",
    "tebi",
)
_OTHER_UNITS = {"minutes", "hours", "days", "weeks", "bits", "kelvin", "fahrenheit", "percent", "percents"}
_SHORT = {"s", "sec", "ms", "us", "ns", "min", "h", "b", "kb", "mb", "gb", "tb", "kib", "mib", "gib", "tib"}


def problems(exposition: str) -> list[str]:
    """One line a finding; empty where all is well. Raises ValueError for what is no exposition."""
    families = text_string_to_metric_families(exposition)
    found = [f"{family.name}: {finding}" for family in families for finding in _family(family)]
    # The parser gives every counter the same form, whatever its name was.
    counters = re.findall(r"^# TYPE (\S+) counter$", exposition, re.MULTILINE)
    return found + [f"{name}: a counter ends in _total" for name in counters if not name.endswith("_total")]


def _family(family: Metric) -> Iterator[str]:
    if not family.documentation:
        yield "no help text"
    if family.type == "unknown":
        yield "no type"
    if family.type != "counter" and family.name.endswith("_total"):
        yield "only a counter ends in _total"
    if family.type not in ("histogram", "summary") and re.search(r"_(bucket|count|sum)$", family.name):
        yield "the suffix is a histogram's or summary's"
    labels = {label for sample in family.samples for label in sample.labels}
    if family.type != "histogram" and "le" in labels:
        yield "the label le is a histogram's"
    if family.type != "summary" and "quantile" in labels:
        yield "the label quantile is a summary's"
    for name in (family.name, *sorted(labels)):
        if not re.fullmatch(r"[a-z_][a-z0-9_]*", name):
            yield f"{name} is not lower case with underscores"
    words = set(family.name.split("_"))
    for word in sorted(words & _TYPES):
        yield f"the name holds the type {word}"
    for word in sorted(words):
        if word in _SHORT or word in _OTHER_UNITS or _prefixed(word):
            yield f"{word} is no base unit written out"


def _prefixed(word: str) -> bool:
    return any(word.startswith(prefix) and word.removeprefix(prefix) in _BASE for prefix in _PREFIXES)
