"""Sees every step once it has run, for metrics and spans."""

from pillion.executor.compute import Step
from pillion.executor.metrics import Metrics
from pillion.executor.spans import Spans


class Watch:
    """One for all attachments; they hand over one at a time."""

    def __init__(self, metrics: Metrics, spans: Spans) -> None:
        self._metrics = metrics
        self._spans = spans

    def step(self, step: Step) -> None:
        self._metrics.step(step)
        self._spans.step(step)

    def reset(self) -> None:
        """All slots are empty."""
        self._spans.reset()
