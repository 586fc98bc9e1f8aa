"""What a sequence's spans say of its steps; times are given, so each number is exact."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pillion.contracts import executor_pb2 as pb
from pillion.executor.compute import Step
from pillion.executor.spans import Spans
from pillion.telemetry import names

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


@dataclass(frozen=True)
class Took:
    """A step's parts, of which spans look at the time alone."""

    seconds: float


@pytest.fixture
def seen() -> Iterator[tuple[Spans, InMemorySpanExporter]]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield Spans(provider.get_tracer("test")), exporter
    provider.shutdown()


def ran(plan: pb.Plan, began: float, *seconds: float, finish: int = pb.RUNNING) -> Step:
    sampled = [index for index, sample in enumerate(plan.sample) if sample]
    result = pb.StepResult(
        step=plan.step,
        slot=[plan.slot[index] for index in sampled],
        token_count=[1 for _ in sampled],
        finish=[finish if plan.slot[index] == 0 else pb.RUNNING for index in sampled],
    )
    return Step(plan, result, "", began, began + sum(seconds), [Took(each) for each in seconds], None)  # type: ignore[arg-type]


def test_each_span_tells_its_longest_step(seen: tuple[Spans, InMemorySpanExporter]) -> None:
    spans, exporter = seen
    take = pb.Take(slot=0, incarnation=1, tokens=bytes(4 * 20), traceparent=PARENT)
    spans.step(ran(pb.Plan(step=1, take=[take], slot=[0], start=[0], count=[16], sample=[0]), 100.0, 0.5))
    spans.step(ran(pb.Plan(step=2, slot=[0], start=[16], count=[4], sample=[1]), 101.0, 0.25))
    # Another sequence's chunk rides on the decode of this one, and makes the step the longest.
    spans.step(ran(pb.Plan(step=3, slot=[0], start=[20], count=[1], sample=[1]), 102.0, 0.1))
    spans.step(ran(pb.Plan(step=4, slot=[0, 1], start=[21, 0], count=[1, 31], sample=[1, 0]), 103.0, 0.75))
    last = ran(pb.Plan(step=5, slot=[0], start=[22], count=[1], sample=[2]), 104.0, 0.1, 0.2, finish=pb.STOP)
    spans.step(last)

    prefill, decode = exporter.get_finished_spans()
    (longest,) = prefill.events
    assert (longest.name, longest.timestamp) == (names.EVENT_LONGEST_STEP, 100 * 10**9)
    assert dict(longest.attributes) == {
        "pillion.step": 1, "pillion.seconds": 0.5, "pillion.tokens": 16, "pillion.chunk_tokens": 16,
    }  # fmt: skip
    (longest,) = decode.events
    assert longest.timestamp == 103 * 10**9
    assert dict(longest.attributes) == {
        "pillion.step": 4, "pillion.seconds": 0.75, "pillion.tokens": 32, "pillion.chunk_tokens": 31,
    }  # fmt: skip


def test_of_several_steps_the_longest_counts_and_one_that_failed_counts_whole(
    seen: tuple[Spans, InMemorySpanExporter],
) -> None:
    spans, exporter = seen
    take = pb.Take(slot=0, incarnation=1, tokens=bytes(4), traceparent=PARENT)
    plan = pb.Plan(step=1, take=[take], slot=[0], start=[0], count=[1], sample=[3])
    spans.step(ran(plan, 100.0, 0.1, 0.3, 0.2))
    assert exporter.get_finished_spans()[0].events[0].attributes["pillion.seconds"] == 0.3
    spans.step(
        Step(pb.Plan(step=2, slot=[0], start=[1], count=[1], sample=[1]), None, "no", 101.0, 103.0, [], None)
    )
    spans.reset()
    assert exporter.get_finished_spans()[1].events[0].attributes["pillion.seconds"] == 2.0
