"""What a case cost inside the server, from the executors' counters, and what it had to cost at least.

The counters are by intensity, the steps' operations per byte within a factor of two. Within a bucket all
steps wait for the same, memory or the cores, so that the larger of two sums is the sum of the larger ones;
only the bucket that holds the machine's balance may tell too little.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from pillion.ops.bench.ceilings import Ceilings
from pillion.telemetry import names

Samples = dict[tuple[str, str], float]
"""Values by a sample's name and its label."""

_STEPS = names.STEP_SECONDS.name
_GAPS = names.STEP_GAP_SECONDS.name
_WANTED = {
    *(names.FLOPS.name, names.READ_BYTES.name, names.STEP_PART_SECONDS.name),
    *(f"{_STEPS}_sum", f"{_STEPS}_count", f"{_GAPS}_sum", f"{_GAPS}_count"),
}


def samples(expositions: Iterable[str]) -> Samples:
    """What is wanted of executors' metrics, added up."""
    found: Samples = defaultdict(float)
    for text in expositions:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in _WANTED:
                    found[sample.name, "".join(sample.labels.values())] += sample.value
    return found


def between(before: Samples, after: Samples) -> Samples:
    """How much each has grown. Raises ValueError where one fell: its executor is another one."""
    grown = {key: value - before.get(key, 0.0) for key, value in after.items()}
    if any(value < 0 for value in grown.values()):
        raise ValueError("an executor was started again")
    return grown


def account(grown: Samples, seconds: float, executors: int) -> dict[str, Any]:
    """What steps, gaps and parts there were within so many seconds."""
    steps, step_seconds = grown[f"{_STEPS}_count", ""], grown[f"{_STEPS}_sum", ""]
    gaps, gap_seconds = grown[f"{_GAPS}_count", ""], grown[f"{_GAPS}_sum", ""]
    work = {
        intensity: (grown[names.FLOPS.name, intensity], grown[names.READ_BYTES.name, intensity])
        for name, intensity in grown
        if name == names.FLOPS.name and grown[name, intensity]
    }
    return {
        "steps": steps,
        "step_s": step_seconds,
        "step_share": step_seconds / (seconds * executors),
        "gap_s": gap_seconds,
        "gap_mean_ms": gap_seconds / gaps * 1000 if gaps else None,
        "parts_s": {
            label: value for (name, label), value in grown.items() if name == names.STEP_PART_SECONDS.name
        },
        "work": work,  # intensity: operations, bytes
    }


def floor(
    account: Mapping[str, Any], ceilings: Ceilings, seconds: float, rate: float | None, *, int8: bool
) -> dict[str, Any]:
    """The least time that the account's steps could take, and how near to it the case came.

    `rate` is the case's tokens a second, where it has one, within its `seconds`; `int8`: the weights are.
    """
    least = sum(ceilings.seconds(*work, int8=int8) for work in account["work"].values())
    return {
        "seconds": least,
        "reached": least / seconds,
        "reached_in_steps": least / account["step_s"] if account["step_s"] else None,
        "tokens_per_s": rate * seconds / least if rate and least else None,
        "gflop_per_s": (ceilings.int8_flops_per_s if int8 else ceilings.flops_per_s) / 1e9,
        "gb_per_s": ceilings.bytes_per_s / 1e9,
    }
