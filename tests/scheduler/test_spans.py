"""The scheduler's spans: each ends, whatever becomes of its sequence."""

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pillion.contracts.entries import Tokens
from pillion.scheduler.spans import Spans
from pillion.telemetry import tracing
from tests.bus_client import request

TRACE = f"00-{'a' * 32}-{'b' * 16}-01"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "tracer", lambda: provider.get_tracer("test"))
    return exporter


def ended(exporter: InMemorySpanExporter) -> list[tuple[str, int]]:
    spans = exporter.get_finished_spans()
    return [(span.name, span.attributes["pillion.choice"]) for span in spans]  # type: ignore[index, misc]


def test_a_refused_request_leaves_no_span_open(exporter: InMemorySpanExporter) -> None:
    spans = Spans()
    spans.opened(request("r", n=2, traceparent=TRACE), 1.0)
    spans.opened(request("other", traceparent=TRACE), 1.0)
    spans.refused("r")
    assert ended(exporter) == [("queue", 0), ("queue", 1)]
    assert len(spans._phases) == 1


def test_a_choice_that_had_ended_opens_none(exporter: InMemorySpanExporter) -> None:
    spans = Spans()
    spans.opened(request("r", n=3, traceparent=TRACE), 1.0, ended={0, 2})
    spans.brought((Tokens("r", 1, 0, (), "cancelled"),))
    assert ended(exporter) == [("queue", 1)]
    assert not spans._phases
