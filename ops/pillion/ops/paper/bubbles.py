"""SARATHI's pipeline (arXiv 2308.16369): what stages wait for, and what uniform batches bring."""

from random import Random

from .gpu import A100, GPT_3, Deployment
from .pipeline import Job
from .sarathi import jobs, run
from .table import Table

_LONGEST, _SHORTEST, _SKEW, _RATIO, _REQUESTS = 4096, 1024, 0.4, 10, 2000


def pipelines() -> Table:
    load = _zipf(_REQUESTS)
    both, tensor = Deployment(GPT_3, A100, tp=8, stages=8), Deployment(GPT_3, A100, tp=8)
    slots, alone = both.batch(_LONGEST), tensor.batch(_LONGEST)
    share = load[::8]  # of one of eight replicas
    ran = (
        ("Orca, TP 8, PP 8", "1", "1", run(both, "orca", slots, None, load), 1),
        ("the same, one prompt a step", None, None, run(both, "orca", slots, 1, load), 1),
        ("SARATHI 256, TP 8, PP 8", "1.91", "1 / 6.29", run(both, "sarathi", slots, 256, load), 1),
        ("Orca, TP 8, eight replicas", "1.28", None, run(tensor, "orca", alone, None, share), 8),
        ("the same, one prompt a step", None, None, run(tensor, "orca", alone, 1, share), 8),
    )
    base = ran[0][3]
    rows = []
    for name, throughput, bubbles, one, replicas in ran:
        faster = replicas * one.bubbles.requests.count / one.seconds / (_REQUESTS / base.seconds)
        fewer = f"1 / {base.median_wait / one.median_wait:.3g}" if one.median_wait else "none"
        kinds = [seconds / one.bubbles.stages for seconds in one.bubbles.seconds]
        idle = 100 * one.bubbles.summary(one.seconds)["idle_share"]
        rows.append((name, throughput, faster, bubbles, fewer, *kinds, idle))
    return Table(
        "pipelines",
        "SARATHI: bubbles of a pipeline",
        f"GPT-3 on 64 A100, {_REQUESTS} requests of {_SHORTEST} to {_LONGEST} tokens (Zipf, {_SKEW}), P:D "
        f"{_RATIO}, all there from the start; {slots} slots for each of eight micro-batches of one "
        f"scheduler, {alone} for a replica, by the paper's formula for B. Bubbles: how long stages wait for "
        "a micro-batch while the pipeline has work; of a request, those ahead of its steps, median. By what"
        " the stage had run and what it waited for, seconds a stage: two with prefills (PB1), one with and "
        "one without (PB2), decodes alone (PB3). Idle: with all other waits, filling and draining the "
        "pipeline included.",
        (
            *("", "throughput, paper", "ours", "a request's bubbles, paper", "ours"),
            *("PB1, s", "PB2, s", "PB3, s", "idle, %"),
        ),
        tuple(rows),
        "The order is the paper's: SARATHI before TP only before Orca over stages; SARATHI gains more over "
        "Orca than there and about as much over TP only (1.64 against 1.48). Orca's bubbles are nearly all "
        "of the second kind: a whole prompt beside decodes. Our stages are equal to the last microsecond, "
        "so what SARATHI leaves is the way between machines and unequal attention, a tenth of what it left "
        "there. All requests begin at once, which is hard on Orca, and letting one prompt at a time into "
        "its steps does not help.",
    )


def _zipf(count: int) -> list[Job]:
    lengths = range(_SHORTEST, _LONGEST + 1)
    weights = [(rank + 1) ** -_SKEW for rank in range(len(lengths))]
    drawn = Random(1).choices(lengths, weights, k=count)
    return [jobs(length, _RATIO, 1)[0] for length in drawn]
