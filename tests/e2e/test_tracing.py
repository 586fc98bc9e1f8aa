"""One request seen through four services, in a real OTLP receiver (S35)."""

import asyncio
import time
from collections import defaultdict
from concurrent import futures

import grpc
import httpx
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from tests.servers import free_port

ASKED = {
    "temperature": 0.5,
    "top_p": 0.75,
    "top_k": 7,
    "seed": 3,
    "frequency_penalty": 0.25,
    "presence_penalty": -0.5,
}
"""Of the body, by the names that both OpenAI's API and the GenAI conventions have."""


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps what exporters send."""

    def __init__(self) -> None:
        self.spans: list[tuple[dict[str, str], object]] = []  # resource attributes and span
        self.server = grpc.server(futures.ThreadPoolExecutor(4))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self.server)
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    def Export(self, request, context):
        for resource in request.resource_spans:
            attributes = {item.key: item.value.string_value for item in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [(attributes, span) for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()


@pytest.fixture
def receiver():
    receiver = Receiver()
    yield receiver
    receiver.server.stop(0)


@pytest.fixture
def traced(processes, tiny_model, receiver):
    port = free_port()
    running = processes(
        model=tiny_model("llama3"),
        dtype="float32",
        num_kv_blocks=64,
        block_size=16,
        port=port,
        max_num_batched_tokens=64,
        OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{receiver.port}",
        OTEL_EXPORTER_OTLP_INSECURE="true",
        OTEL_BSP_SCHEDULE_DELAY="100",
    )
    for service in ("executor", "scheduler", "admission"):
        running.start(service)
    running.start("gateway", slo_tbt=1e-6)  # so that every stream misses it
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 120
    while True:
        try:
            if httpx.get(url + "/health/ready").status_code == 200:
                return url
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline, running.log("gateway")
        time.sleep(0.1)


def ancestors(span, inside: dict) -> list:
    """From the parent up; every parent must have arrived too."""
    above = []
    parent = span.parent_span_id
    while parent:
        above.append(inside[parent])
        parent = above[-1].parent_span_id
    return above


async def test_one_trace_goes_through_four_services(traced, receiver):
    async with httpx.AsyncClient(timeout=60) as client:
        body = {"max_tokens": 12, "ignore_eos": True, **ASKED}
        answers = await asyncio.gather(
            *(
                client.post(traced + "/v1/completions", json=body | {"prompt": letter * 150})
                for letter in "xy"
            )
        )
    assert [answer.status_code for answer in answers] == [200, 200]

    def by_trace() -> dict[bytes, list]:
        traces = defaultdict(list)
        for resource, span in receiver.spans:
            traces[span.trace_id].append((resource, span))
        return {
            trace: spans
            for trace, spans in traces.items()
            if any(s.name == "POST /v1/completions" for _, s in spans)
        }

    wanted = {"POST /v1/completions", "queue", "prefill", "decode", "execute prefill", "execute decode"}
    deadline = time.monotonic() + 60
    while True:
        traces = by_trace()
        if len(traces) == 2 and all(wanted <= {s.name for _, s in spans} for spans in traces.values()):
            break
        assert time.monotonic() < deadline, {
            t: sorted(s.name for _, s in spans) for t, spans in traces.items()
        }
        await asyncio.sleep(0.1)

    ids = {answer.json()["id"] for answer in answers}
    assert len(ids) == 2
    for spans in traces.values():
        named = {span.name: span for _, span in spans}
        services = {resource["service.name"] for resource, _ in spans}
        assert services == {"pillion-gateway", "pillion-admission", "pillion-scheduler", "pillion-executor"}
        assert len({resource["service.instance.id"] for resource, _ in spans}) == 4
        assert {resource["service.namespace"] for resource, _ in spans} == {"pillion"}

        inside = {span.span_id: span for _, span in spans}
        server = named["POST /v1/completions"]
        assert server.kind == server.SPAN_KIND_SERVER
        assert not server.parent_span_id
        chat = next(span for name, span in named.items() if name.startswith("text_completion "))
        assert chat.parent_span_id == server.span_id
        for _, span in spans:
            above = ancestors(span, inside)
            if span is not server:
                assert above[-1] is server
            if span not in (server, chat):
                assert chat in above
        assert len(spans) >= 7

        chunks = [event for event in named["prefill"].events if event.name == "chunk"]
        assert len(chunks) >= 2  # 150 tokens with a budget of 64
        assert named["queue"].end_time_unix_nano <= named["decode"].start_time_unix_nano
        attributes = {item.key: item.value for item in chat.attributes}
        assert attributes["gen_ai.usage.output_tokens"].int_value == 12
        assert attributes["gen_ai.usage.input_tokens"].int_value == 150
        assert attributes["gen_ai.response.id"].string_value in ids
        values = {key: getattr(value, value.WhichOneof("value")) for key, value in attributes.items()}
        assert {key: values.get(f"gen_ai.request.{key}") for key in ASKED} == ASKED
        assert values["gen_ai.request.max_tokens"] == 12
        assert values["gen_ai.request.stream"] is False
        assert values["gen_ai.request.choice.count"] == 1
        assert values["gen_ai.operation.name"] == "text_completion"
        assert values["gen_ai.provider.name"] == "pillion"
        assert chat.name == f"text_completion {values['gen_ai.request.model']}"
        assert values["gen_ai.response.model"] == values["gen_ai.request.model"]
        assert [each.string_value for each in values["gen_ai.response.finish_reasons"].values] == ["length"]
        assert values["gen_ai.usage.cache_read.input_tokens"] == 0
        assert "error.type" not in values
        # GenAI attributes stand on this span alone.
        others = [key.key for _, span in spans if span is not chat for key in span.attributes]
        assert not [key for key in others if key.startswith("gen_ai.")]
        assert attributes["pillion.slo.missed"].string_value == "tbt"
        # From the request to its longest gap, and to the step that was the longest meanwhile.
        (gap,) = [event for event in chat.events if event.name == "longest gap"]
        told = {item.key: item.value for item in gap.attributes}
        assert told["pillion.seconds"].double_value > 1e-6
        assert 1 <= told["pillion.position"].int_value <= 11
        assert chat.start_time_unix_nano < gap.time_unix_nano <= chat.end_time_unix_nano
        (longest,) = [event for event in named["execute decode"].events if event.name == "longest step"]
        told = {item.key: item.value for item in longest.attributes}
        assert told["pillion.seconds"].double_value > 0
        assert told["pillion.tokens"].int_value >= 1
        assert told["pillion.step"].int_value >= 4
        assert not any("prompt" in key and "token" not in key for key in attributes)
        assert "gen_ai.system" not in attributes
