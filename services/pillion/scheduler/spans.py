"""Spans of each sequence: queue, prefill (an event a chunk), decode. Made from the core's commands."""

from collections.abc import Collection
from dataclasses import dataclass

from opentelemetry.trace import Span

from pillion.contracts.entries import Request, Tokens
from pillion.scheduler.messages import Plan
from pillion.telemetry import names, tracing


@dataclass(slots=True)
class _Phase:
    request: Request
    span: Span
    name: str
    start: int = 0  # computed tokens when the prefill began


class Spans:
    """At most one open span a sequence. Requests without a traceparent (tracing is off) cost nothing."""

    def __init__(self) -> None:
        self._phases: dict[tuple[str, int], _Phase] = {}
        self._slots: dict[int, tuple[str, int]] = {}

    def opened(self, request: Request, sent: float, ended: Collection[int] = ()) -> None:
        """`sent`: the time of the run entry, seconds since the epoch. `ended`: choices that run no more."""
        if request.traceparent:
            for choice in range(len(request.prompts) * request.n):
                if choice in ended:
                    continue
                self._begin(request, choice, names.SPAN_QUEUE, tracing.nanoseconds(sent))

    def planned(self, plan: Plan) -> None:
        for take in plan.take:
            key = (take.request.id, take.choice)
            self._slots[take.slot] = key
            if take.request.traceparent:
                self._begin(take.request, take.choice, names.SPAN_PREFILL)
        if not self._phases:
            return
        for index in range(plan.decodes, len(plan.slots)):
            phase = self._phases.get(self._slots.get(plan.slots[index], ("", 0)))
            if phase is not None and phase.name == names.SPAN_PREFILL:
                attributes = {
                    "pillion.step": plan.step,
                    "pillion.start": plan.starts[index],
                    "pillion.tokens": plan.counts[index],
                }
                phase.span.add_event(names.EVENT_CHUNK, attributes)

    def brought(self, items: tuple[Tokens, ...]) -> None:
        if not self._phases:
            return
        for item in items:
            key = (item.request, item.choice)
            phase = self._phases.get(key)
            if phase is None:
                continue
            if item.finish is not None:
                phase.span.set_attribute("pillion.finish", item.finish)
                self._end(key)
            elif phase.name == names.SPAN_PREFILL:
                self._begin(phase.request, item.choice, names.SPAN_DECODE)

    def parked(self, requests: tuple[str, ...]) -> None:
        if self._phases and requests:
            for key in [key for key in self._phases if key[0] in requests]:
                self._phases[key].span.set_attribute("pillion.finish", "parked")
                self._end(key)

    def refused(self, request: str) -> None:
        """It will not run after all."""
        for key in [key for key in self._phases if key[0] == request]:
            self._phases[key].span.set_attribute(names.ERROR_TYPE, "refused")
            self._end(key)

    def _begin(self, request: Request, choice: int, name: str, start: int | None = None) -> None:
        key = (request.id, choice)
        self._end(key)
        attributes: dict[str, str | int] = {"pillion.request": request.id, "pillion.choice": choice}
        span = tracing.tracer().start_span(
            name, tracing.context(request.traceparent), attributes=attributes, start_time=start
        )
        self._phases[key] = _Phase(request, span, name)

    def _end(self, key: tuple[str, int]) -> None:
        phase = self._phases.pop(key, None)
        if phase is not None:
            phase.span.end()
