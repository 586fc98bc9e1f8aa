"""What a step computes, for the cost model, from the rows that it carries."""

from collections.abc import Sequence

from pillion.steptime import Work

from .messages import Plan


def work_of(plan: Plan) -> Work:
    """Of the plan's first step."""
    return of_rows(plan.decodes, plan.starts, plan.counts, plan.samples, plan.scored)


def of_rows(
    decodes: int, starts: Sequence[int], counts: Sequence[int], samples: Sequence[int], scored: int = 0
) -> Work:
    """Of parallel arrays, one element a sequence, the decodes first; `samples` holds the tokens granted.

    `scored` rows go through the head beside those that sample.
    """
    pairs = 0.0
    for start, count in zip(starts[decodes:], counts[decodes:], strict=True):
        pairs += count * (start + count / 2)
    return Work(
        rows=decodes + sum(counts[decodes:]),
        decodes=decodes,
        context=sum(starts[:decodes]) + decodes,
        chunks=len(starts) - decodes,
        pairs=pairs,
        sampled=len(samples) - samples.count(0) + scored,
    )
