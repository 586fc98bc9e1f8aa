"""What the policy's steps come to while prompts wait: how fast these go, and how many sequences fit."""

from dataclasses import dataclass

from .budget import Budget
from .policies import Policy

_CONTEXT = 256  # positions of a decode, where none runs to tell


@dataclass(frozen=True, slots=True)
class Outlook:
    """By the cost model."""

    prefill_rate: float  # prompt tokens/s beside the decodes that run now
    seats: int  # sequences that run at once and keep what the policy keeps
    step_seconds: float  # until a stream has its next token
    idle_rate: float  # prompt tokens/s with no decodes
    intake: float  # prompt tokens/s of which a replica holds some seconds' worth


UNKNOWN = Outlook(0.0, 0, 0.0, 0.0, 0.0)


def outlook(policy: Policy, budget: Budget, decodes: int, context: int, left: int, slots: int) -> Outlook:
    """`context`: the decodes' positions in all; `left`: the most tokens that one of them has to come;
    `slots`: the most sequences that may run.

    As many steps as stages run beside each other and share the sequences, and each takes its full time.
    """
    if not budget.cost.known:
        return UNKNOWN
    stages = budget.stages
    rate, seconds = _rate(policy, budget, -(-decodes // stages), context // stages, left)
    idle, _ = _rate(policy, budget, 0, 0, 0)
    mean = context / decodes if decodes else _CONTEXT
    low, high = 1, -(-slots // stages)
    while low < high:
        middle = (low + high + 1) // 2
        if policy.fits(budget, middle, int(middle * mean)):
            low = middle
        else:
            high = middle - 1
    return Outlook(
        prefill_rate=stages * rate,
        seats=min(stages * low, slots),
        step_seconds=seconds,
        idle_rate=stages * idle,
        intake=stages * (idle if policy.batches else rate),
    )


def _rate(policy: Policy, budget: Budget, decodes: int, context: int, left: int) -> tuple[float, float]:
    """Prompt tokens/s of one stage's steps, and how long these take for each token of a stream."""
    turn = policy.turn(budget, decodes, context, left)
    tokens = sum(work.rows - work.decodes for work, _ in turn)
    seconds = sum(times * budget.seconds(work) for work, times in turn)
    streams = max((times for work, times in turn if work.decodes), default=1)
    return tokens / seconds, seconds / streams
