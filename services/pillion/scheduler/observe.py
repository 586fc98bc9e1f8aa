"""Metrics and the line in the log, from what goes into the core and comes out of it."""

import logging

from pillion.scheduler.messages import Plan, Snapshot, StepDone
from pillion.telemetry import Metrics, names
from pillion.version import VERSION

log = logging.getLogger(__name__)

LINE_EVERY = 10.0  # seconds, while busy

_COUNTERS = (
    (names.PREEMPTIONS, "preemptions"),
    (names.RECOMPUTED_TOKENS, "recomputed_tokens"),
    (names.PREFIX_QUERIED_TOKENS, "queried_tokens"),
    (names.PREFIX_HIT_TOKENS, "hit_tokens"),
    (names.PREFIX_FLUSHED_BLOCKS, "flushed_blocks"),
    (names.LATE_RESULTS, "late_results"),
    (names.EXECUTORS_LOST, "executors_lost"),
    (names.POISONOUS, "poisonous"),
)


class Observer:
    """Reads snapshots; decides nothing."""

    def __init__(self) -> None:
        own = [metric for metric in names.METRICS if metric.layer == "scheduler"]
        self.metrics = Metrics("scheduler", VERSION, [*own, names.SCHEDULING_DELAY, names.PREFILL_RATE_LEFT])
        self._pending: dict[int, tuple[int, tuple[int, ...]]] = {}  # plan: prefill tokens, and their slots
        self._seen = dict.fromkeys((field for _, field in _COUNTERS), 0)
        self._line_at = 0.0
        self._line = Line()
        self.budget = 0  # tokens that the latest step was allowed
        self.prefilled = 0  # tokens, in all
        self.decoded = 0
        self.step_time = 0.0  # seconds of steps, in all

    def planned(self, plan: Plan) -> None:
        chunks = plan.counts[plan.decodes :]
        self._pending[plan.step] = sum(chunks), plan.slots[plan.decodes :]
        self.budget = plan.budget
        self.metrics[names.STEP_BUDGET_TOKENS].set(plan.budget)
        self.metrics[names.PLAN_STEPS].observe(plan.steps)
        for count in chunks:
            self.metrics[names.CHUNK_TOKENS].observe(count)

    def attached(self) -> None:
        """A new attachment counts its steps from 1."""
        self._pending.clear()

    def returned(self, step: StepDone) -> None:
        prefill, slots = self._pending.pop(step.step, (0, ()))
        generated = sum(len(row.tokens) for row in step.rows)
        # A decode brings the tokens that it was granted, or fewer where it ends; a prompt's end brings one.
        decode = generated - sum(len(row.tokens) for row in step.rows if row.slot in slots)
        self.metrics[names.STEP_TOKENS].labels(kind="prefill").inc(prefill)
        self.metrics[names.STEP_TOKENS].labels(kind="decode").inc(decode)
        self.prefilled += prefill
        self.decoded += decode
        self.step_time += step.seconds
        self._line.prompt += prefill
        while self._pending and (oldest := next(iter(self._pending))) < step.step:
            del self._pending[oldest]  # it failed
        self._line.generated += generated
        self._line.worst = max(self._line.worst, step.seconds / max(step.steps, 1))

    def scrape(self, snapshot: Snapshot, dead: int, opened: int) -> None:
        """Brings gauges and counters up to date."""
        metrics = self.metrics
        for metric, field in _COUNTERS:
            value = getattr(snapshot, field)
            metrics[metric].inc(value - self._seen[field])
            self._seen[field] = value
        for state in ("waiting", "prefilling", "decoding"):
            metrics[names.SEQUENCES].labels(state=state).set(getattr(snapshot, state))
        for state in ("free", "cached", "referenced"):
            metrics[names.BLOCKS].labels(state=state).set(getattr(snapshot, f"{state}_blocks"))
        metrics[names.STEP_LIMIT_TOKENS].set(snapshot.step_limit)
        metrics[names.STEP_TARGET].set(snapshot.step_target)
        for level, factor in zip(("middle", "high"), snapshot.factors, strict=True):
            metrics[names.STEP_CORRECTION].labels(level=level).set(factor)
        metrics[names.LEDGER_REQUESTS].set(opened)
        metrics[names.PREFILL_RATE_LEFT].set(snapshot.prefill_rate)
        letters = metrics[names.DEAD_LETTERS]
        letters.inc(dead - self._seen.get("dead", 0))
        self._seen["dead"] = dead

    def line(self, snapshot: Snapshot, now: float) -> None:
        """One line every ten seconds while there is work."""
        if not self._line_at:
            self._line_at = now
        if now - self._line_at < LINE_EVERY:
            return
        line, seconds = self._line, now - self._line_at
        if line.prompt or line.generated:
            asked = snapshot.queried_tokens - line.queried
            hit = f"{(snapshot.hit_tokens - line.hit) / asked:.0%}" if asked else "n/a"
            usage = snapshot.referenced_blocks / snapshot.blocks if snapshot.blocks else 0.0
            log.info(
                "prompt %.0f tokens/s, generation %.0f tokens/s, running %d, waiting %d, KV %.0f %%,"
                " prefix hits %s, longest step %.0f ms",
                line.prompt / seconds,
                line.generated / seconds,
                snapshot.prefilling + snapshot.decoding,
                snapshot.waiting,
                100 * usage,
                hit,
                1000 * line.worst,
            )
        self._line = Line(queried=snapshot.queried_tokens, hit=snapshot.hit_tokens)
        self._line_at = now


class Line:
    """What the log's next line sums up."""

    def __init__(self, queried: int = 0, hit: int = 0) -> None:
        self.prompt = 0
        self.generated = 0
        self.worst = 0.0
        self.queried = queried
        self.hit = hit
