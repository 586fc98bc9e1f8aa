"""Sees every plan once it has run, for metrics and spans. A plan of several steps counts each of them."""

from pillion.executor.compute import Step
from pillion.executor.spans import Spans
from pillion.executor.work import INTENSITIES
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
        self._flops = {each: metrics[names.FLOPS].labels(intensity=each) for each in INTENSITIES}
        self._read_bytes = {each: metrics[names.READ_BYTES].labels(intensity=each) for each in INTENSITIES}
        self._failed = metrics[names.STEPS_FAILED]
        self._spans = spans

    def step(self, step: Step) -> None:
        self._spans.step(step)
        if step.result is None:
            self._failed.inc()
            return
        for parts in step.parts:
            self._seconds.observe(parts.seconds)
            for part, counter in self._parts.items():
                counter.inc(getattr(parts, part))
            work = parts.work
            self._flops[work.intensity].inc(work.flops)
            self._read_bytes[work.intensity].inc(work.read_bytes)
        if step.gap is not None:
            self._gap.observe(step.gap)

    def reset(self) -> None:
        """All slots are empty."""
        self._spans.reset()
