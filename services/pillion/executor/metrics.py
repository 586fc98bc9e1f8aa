"""What the executor counts. Observed once a step, on the event loop."""

from prometheus_client import CollectorRegistry, Counter, Histogram

from pillion.executor.compute import Step

_SECONDS = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0)
_GAPS = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 1.0)


class Metrics:
    """The executor's group of metrics in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "pillion_step_seconds", "Time of a step that ran.", buckets=_SECONDS, registry=registry
        )
        self._gap = Histogram(
            "pillion_step_gap_seconds",
            "Idle time before a step while sequences were running.",
            buckets=_GAPS,
            registry=registry,
        )
        self._failed = Counter("pillion_steps_failed_total", "Steps that raised.", registry=registry)

    def step(self, step: Step) -> None:
        if step.result is None:
            self._failed.inc()
            return
        self._seconds.observe(step.result.seconds)
        if step.gap is not None:
            self._gap.observe(step.gap)
