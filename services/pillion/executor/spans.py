"""A sequence's two spans at the executor: `execute prefill` and `execute decode`, never one a token.

Each tells its longest step as an event; other sequences' chunks in that step name the same number.
"""

from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.context import Context

from pillion.contracts import executor_pb2
from pillion.executor.compute import Step
from pillion.telemetry import names, tracing
from pillion.telemetry.tracing import nanoseconds


@dataclass(frozen=True, slots=True)
class _Longest:
    """The longest of a plan's steps."""

    began: int  # nanoseconds, of the plan
    seconds: float
    step: int  # the plan's number
    tokens: int  # computed by its first step, of all sequences
    chunk_tokens: int  # of these, in rows of more than one: chunks of prompts

    @classmethod
    def of(cls, step: Step) -> "_Longest":
        counts = list(step.plan.count)
        longest = max((parts.seconds for parts in step.parts), default=step.ended - step.began)
        chunks = sum(count for count in counts if count > 1)
        return cls(nanoseconds(step.began), longest, step.plan.step, sum(counts), chunks)


@dataclass(slots=True)
class _Sequence:
    context: Context
    span: trace.Span
    prefilling: bool
    steps: int = 0
    tokens: int = 0
    longest: _Longest | None = None


class Spans:
    """Follows the sequences in the slots. Prefill lasts from taking the slot to the first token."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer
        self._slots: dict[int, _Sequence] = {}

    def step(self, step: Step) -> None:
        """To be told of every plan, in order; costs nothing where no sequence brought a trace context."""
        plan, end = step.plan, nanoseconds(step.ended)
        for slot in plan.release:
            self._close(slot, end, "released")
        for take in plan.take:
            self._open(take, step)
        if not self._slots:
            return
        finished, further = {}, {}  # by slot: how it ended; steps behind the first
        if step.result is not None:
            ends = zip(step.result.slot, step.result.finish, strict=True)
            finished = {slot: finish for slot, finish in ends if finish != executor_pb2.RUNNING}
            brought = zip(step.result.slot, step.result.token_count, strict=True)
            further = {slot: count - 1 for slot, count in brought if count > 1}
        longest = _Longest.of(step)
        # A plan that was refused may have lists of different lengths.
        for slot, count, sample in zip(plan.slot, plan.count, plan.sample, strict=False):
            sequence = self._slots.get(slot)
            if sequence is None:
                continue
            sequence.steps += 1 + further.get(slot, 0)
            sequence.tokens += count + further.get(slot, 0)
            if sequence.longest is None or longest.seconds > sequence.longest.seconds:
                sequence.longest = longest
            if step.result is None:
                sequence.span.set_attribute(names.ERROR_TYPE, "step_failed")
            elif sequence.prefilling and sample and slot not in finished:
                self._end(sequence, end)
                sequence.prefilling = False
                sequence.steps, sequence.tokens, sequence.longest = 0, 0, None
                sequence.span = self._tracer.start_span(
                    names.SPAN_EXECUTE_DECODE, sequence.context, start_time=end
                )
        for slot, finish in finished.items():
            self._close(slot, end, executor_pb2.Finish.Name(finish).lower())

    def reset(self) -> None:
        """The slots are empty: their sequences go on elsewhere or not at all."""
        for slot in tuple(self._slots):
            self._close(slot, None, "detached")

    def _open(self, take: executor_pb2.Take, step: Step) -> None:
        self._close(take.slot, nanoseconds(step.began), "released")
        context = tracing.context(take.traceparent)
        if context is None:
            return
        span = self._tracer.start_span(
            names.SPAN_EXECUTE_PREFILL,
            context,
            start_time=nanoseconds(step.began),
            attributes={
                "pillion.choice": take.choice,
                "pillion.known_tokens": len(take.tokens) // 4,
            },
        )
        self._slots[take.slot] = _Sequence(context, span, prefilling=True)

    def _close(self, slot: int, end: int | None, reason: str) -> None:
        sequence = self._slots.pop(slot, None)
        if sequence is None:
            return
        sequence.span.set_attribute("pillion.end", reason)
        self._end(sequence, end)

    @staticmethod
    def _end(sequence: _Sequence, end: int | None) -> None:
        sequence.span.set_attribute("pillion.steps", sequence.steps)
        sequence.span.set_attribute("pillion.computed_tokens", sequence.tokens)
        if longest := sequence.longest:
            told: dict[str, int | float] = {
                "pillion.step": longest.step,
                "pillion.seconds": longest.seconds,
                "pillion.tokens": longest.tokens,
                "pillion.chunk_tokens": longest.chunk_tokens,
            }
            sequence.span.add_event(names.EVENT_LONGEST_STEP, told, longest.began)
        sequence.span.end(end)
