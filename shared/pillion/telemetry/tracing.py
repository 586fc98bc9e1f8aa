"""Traces by the OTel SDK: off unless OTEL_EXPORTER_OTLP_ENDPOINT (or its traces variant) is set.

Context travels as a W3C `traceparent` string in stream entries and plans; nothing here relies on automatic
instrumentation, since a stream entry outlives any call.
"""

import os
from collections.abc import Callable

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, TraceFlags, Tracer

from pillion.telemetry import names


def setup(service: str, version: str, instance: str) -> Callable[[], None]:
    """Installs the exporter for `pillion-{service}` and answers what flushes and ends it."""
    variables = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or not any(map(os.environ.get, variables)):
        return lambda: None
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create(
        {
            "service.name": f"pillion-{service}",
            "service.namespace": names.NAMESPACE,
            "service.instance.id": instance,
            "service.version": version,
        },
        names.SCHEMA_URL,
    )
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider.shutdown


def tracer() -> Tracer:
    return trace.get_tracer("pillion", schema_url=names.SCHEMA_URL)


def traceparent(span: Span) -> str:
    """The span's context as W3C `traceparent`; empty where tracing is off."""
    context = span.get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def context(parent: str) -> Context | None:
    """The context of a `traceparent`; None for an empty or malformed one (the span then starts a trace)."""
    parts = parent.split("-")
    if len(parts) < 4 or len(parts[1]) != 32 or len(parts[2]) != 16:
        return None
    try:
        remote = SpanContext(int(parts[1], 16), int(parts[2], 16), True, TraceFlags(int(parts[3], 16)))
    except ValueError:
        return None
    return trace.set_span_in_context(NonRecordingSpan(remote)) if remote.is_valid else None


def nanoseconds(wall: float) -> int:
    """A wall clock time in the SDK's unit, for spans that are made after the fact."""
    return int(wall * 1e9)
