"""Scheduling delays as the schedulers of a stack count them: the median within the bucket that holds it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import aiohttp
import psutil
from prometheus_client.parser import text_string_to_metric_families

from pillion.config import Config
from pillion.ops.bench.inside import metrics_of, running
from pillion.ops.bench.server import NoServer
from pillion.ops.processes import roles
from pillion.telemetry import names

Counts = Mapping[float, float]
"""How many sequences waited at most so many seconds."""

_BUCKET = f"{names.SCHEDULING_DELAY.name}_bucket"
_SECONDS = 5.0


def counts(expositions: Iterable[str]) -> Counts:
    """Of all schedulers together."""
    found: dict[float, float] = defaultdict(float)
    for text in expositions:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == _BUCKET:
                    found[float(sample.labels["le"])] += sample.value
    return found


def median(before: Counts, after: Counts) -> float | None:
    """Of what was counted in between, as if even within its bucket; None where nothing was.

    In the last bucket, which has no end, its begin.
    """
    grown = sorted((edge, count - before.get(edge, 0.0)) for edge, count in after.items())
    total = grown[-1][1] if grown else 0.0
    low = below = 0.0
    for edge, reached in grown:
        if total > 0 and reached >= total / 2:
            if edge == float("inf"):
                return low
            return low + (edge - low) * (total / 2 - below) / (reached - below)
        low, below = edge, reached
    return None


async def find(http: aiohttp.ClientSession, config: Config, url: str) -> list[str]:
    """The metrics of the schedulers behind `url`, where a stack with this state folder runs there."""
    found = []
    if (here := running(config, url)) is not None:
        with suppress(psutil.NoSuchProcess):
            for pid in roles(here[0]).get("scheduler", ()):
                for each in metrics_of(pid):
                    with suppress(NoServer):
                        await look(http, [each])
                        found.append(each)
    return found


async def look(http: aiohttp.ClientSession, urls: Sequence[str]) -> Counts:
    """Raises NoServer."""
    texts = []
    for url in urls:
        try:
            async with http.get(url, timeout=aiohttp.ClientTimeout(total=_SECONDS)) as response:
                texts.append(await response.text())
        except (aiohttp.ClientError, OSError) as error:
            raise NoServer(f"no metrics at {url} ({error}); start the stack with --metrics-port N") from None
        if _BUCKET not in texts[-1]:
            raise NoServer(
                f"{url} has no scheduling delays; with --metrics-port N a scheduler's are at N + 1"
            )
    return counts(texts)
