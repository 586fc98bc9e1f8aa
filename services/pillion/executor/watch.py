"""Sees every step once it has run, for metrics and spans."""

from pillion.executor.compute import Step
from pillion.executor.spans import Spans
from pillion.telemetry import Metrics, names


class Watch:
    """One for all attachments; they hand over one at a time."""

    def __init__(self, metrics: Metrics, spans: Spans) -> None:
        self._seconds = metrics[names.STEP_SECONDS]
        self._gap = metrics[names.STEP_GAP_SECONDS]
        self._parts = {
            part: metrics[names.STEP_PART_SECONDS].labels(part=part)
            for part in ("prepare", "forward", "logits", "sample")
        }
        self._flops = metrics[names.FLOPS]
        self._read_bytes = metrics[names.READ_BYTES]
        self._failed = metrics[names.STEPS_FAILED]
        self._spans = spans

    def step(self, step: Step) -> None:
        self._spans.step(step)
        if step.result is None:
            self._failed.inc()
            return
        self._seconds.observe(step.result.seconds)
        for part, counter in self._parts.items():
            counter.inc(getattr(step.parts, part))
        self._flops.inc(step.parts.work.flops)
        self._read_bytes.inc(step.parts.work.read_bytes)
        if step.gap is not None:
            self._gap.observe(step.gap)

    def reset(self) -> None:
        """All slots are empty."""
        self._spans.reset()
