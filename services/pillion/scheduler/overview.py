"""What the core looks like from outside: for heartbeats and metrics."""

from .budget import Budget
from .correction import Corrected
from .messages import Snapshot
from .outlook import UNKNOWN, Outlook, outlook
from .policies import Policy
from .roster import Counters, Queue, Roster


def overview(
    counters: Counters,
    waiting: Queue,
    roster: Roster | None,
    budget: Budget | None,
    policy: Policy,
    *,
    max_model_len: int,
    in_flight: int,
    overdue: float,
    target: float | None,
) -> Snapshot:
    """`roster` and `budget` are None while no executor is attached."""
    pool = roster.pool if roster else None
    prefilling = roster.prefilling if roster else []
    cost = budget.cost if budget else None
    told = _outlook(policy, roster, budget) if roster and budget else UNKNOWN
    return Snapshot(
        max_model_len=max_model_len,
        uncomputed=sum(len(one.tokens) for one in waiting)
        + sum(len(one.tokens) - one.computed for one in prefilling),
        waiting=len(waiting),
        prefilling=len(prefilling),
        decoding=len(roster.decoding) if roster else 0,
        blocks=pool.size if pool else 0,
        free_blocks=pool.free if pool else 0,
        cached_blocks=pool.cached if pool else 0,
        referenced_blocks=pool.referenced if pool else 0,
        in_flight=in_flight,
        overdue=overdue,
        steps=counters.steps,
        failed_steps=counters.failed_steps,
        executors_lost=counters.executors_lost,
        poisonous=counters.poisonous,
        preemptions=counters.preemptions,
        recomputed_tokens=counters.recomputed_tokens,
        queried_tokens=counters.queried_tokens,
        hit_tokens=counters.hit_tokens,
        flushed_blocks=counters.flushed_blocks,
        late_results=counters.late_results,
        prefill_rate=told.prefill_rate,
        seats=told.seats,
        step_seconds=told.step_seconds,
        idle_rate=told.idle_rate,
        intake=told.intake,
        cost_model=cost.hash if isinstance(cost, Corrected) else "",
        factors=cost.factors if cost else (1.0, 1.0),
        step_limit=budget.limit if budget else 0,
        step_target=target or 0.0,
    )


def _outlook(policy: Policy, roster: Roster, budget: Budget) -> Outlook:
    decoding = roster.decoding
    context = sum(one.computed for one in decoding)
    left = max((one.limit - one.computed for one in decoding), default=0)
    return outlook(policy, budget, len(decoding), context, left, roster.slots)
