"""A request's spans at admission: `process pillion:submit`, and in it `send pillion:run:{replica}`."""

import msgspec
from opentelemetry.trace import Span, SpanKind, Tracer

from pillion.admission.line import Waiting
from pillion.contracts.entries import Request
from pillion.telemetry import names, tracing

GROUP = "admission"


class Spans:
    """Made after the fact, when the request leaves: a waiting request holds no span."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def forwarded(self, waiting: Waiting, replica: str) -> Request:
        """The request as it goes on, with the context of the sending span."""
        request = waiting.request
        context = tracing.context(request.traceparent)
        if context is None:
            return request
        process = self._process(waiting)
        send = self._tracer.start_span(
            f"send pillion:run:{replica}",
            tracing.context(tracing.traceparent(process)),
            SpanKind.PRODUCER,
            _attributes("send", f"pillion:run:{replica}"),
        )
        traceparent = tracing.traceparent(send)
        send.end()
        process.end()
        return msgspec.structs.replace(request, traceparent=traceparent) if traceparent else request

    def ended(self, waiting: Waiting, reason: str) -> None:
        """The request goes no further: refused or cancelled."""
        if tracing.context(waiting.request.traceparent) is not None:
            span = self._process(waiting)
            span.set_attribute(names.ERROR_TYPE, reason)
            span.end()

    def _process(self, waiting: Waiting) -> Span:
        attributes = _attributes("process", "pillion:submit")
        attributes[names.MESSAGING_MESSAGE_ID] = waiting.entry
        attributes[names.MESSAGING_CONSUMER_GROUP_NAME] = GROUP
        return self._tracer.start_span(
            "process pillion:submit",
            tracing.context(waiting.request.traceparent),
            SpanKind.CONSUMER,
            attributes,
            start_time=tracing.nanoseconds(waiting.since),
        )


def _attributes(operation: str, destination: str) -> dict[str, str]:
    return {
        names.MESSAGING_SYSTEM: "redis",
        names.MESSAGING_OPERATION_NAME: operation,
        names.MESSAGING_OPERATION_TYPE: operation,
        names.MESSAGING_DESTINATION_NAME: destination,
    }
