"""What is counted of each request: times, metrics, spans, and one log line at its end."""

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, get_current_span

from pillion import clock
from pillion.contracts.entries import Request
from pillion.contracts.timeline import Delivery
from pillion.gateway.answers import Answer
from pillion.gateway.protocol.errors import ApiError
from pillion.gateway.protocol.request import FormName
from pillion.gateway.recent import Recent
from pillion.gateway.vllm import Vllm
from pillion.telemetry import Metrics, names, tracing

log = logging.getLogger(__name__)

METRICS = (
    names.REQUEST_DURATION,
    names.TIME_TO_FIRST_TOKEN,
    names.TIME_PER_OUTPUT_TOKEN,
    names.TIME_BETWEEN_TOKENS,
    names.REQUESTS_STARTED,
    names.REQUESTS,
    names.REQUESTS_RUNNING,
    names.INBOXES,
    names.SLO_REQUESTS,
    names.IGNORED_FIELDS,
    names.IGNORED_KEYS,
    names.RESUMED,
)

GAPS = 60  # of a request that are kept for who looks

FINISHED, PARKED, ABORTED, FAILED = "finished", "parked", "aborted", "failed"
_OPERATIONS = {"chat": "chat", "completion": "text_completion"}


class Accounts:
    """Opens an account for each request that passed validation; every one is closed once."""

    def __init__(
        self,
        metrics: Metrics,
        tracer: Tracer,
        slo_tbt: float,
        slo_ttft: float | None,
        recent: Recent,
        vllm: Vllm | None = None,
    ) -> None:
        self.metrics = metrics
        self.recent = recent
        self.vllm = vllm
        self.tracer = tracer
        self.slo_tbt = slo_tbt
        self.slo_ttft = slo_ttft
        self.running = 0

    @contextmanager
    def span(self, form: FormName, model: str, server: Span, former: str = "") -> Iterator[Span]:
        """The `chat {model}` span, under the server's. It ends with the body, as an error if that raises.

        `former`: the traceparent of the request's first one, which it is linked to when the request goes on.
        """
        operation = _OPERATIONS[form]
        attributes = {
            names.OPERATION_NAME: operation,
            names.PROVIDER_NAME: names.PROVIDER,
            names.REQUEST_MODEL: model,
        }
        context = tracing.context(tracing.traceparent(server))
        first = tracing.context(former)
        links = [] if first is None else [Link(get_current_span(first).get_span_context())]
        span = self.tracer.start_span(f"{operation} {model}", context, SpanKind.INTERNAL, attributes, links)
        try:
            yield span
        except ApiError as error:
            span.set_attribute(names.ERROR_TYPE, error.code or error.type)
            raise
        finally:
            span.end()

    def open(
        self,
        request: Request,
        answer: Answer,
        label: str | None,
        span: Span,
        start: float,
        resumed: str = "",
        replay: bool = False,
    ) -> "Account":
        """`start`: the request's arrival, monotonic seconds. `resumed`: how it stood when its client came
        back. `replay`: it had ended by then, so it is neither started nor ended once more.
        """
        if resumed:
            self.metrics[names.RESUMED].labels(resumed).inc()
        if not replay:
            self.running += 1
            self.metrics[names.REQUESTS_STARTED].inc()
            self.metrics[names.REQUESTS_RUNNING].set(self.running)
        account = Account(self, request, answer, label, span, start, bool(resumed), replay)
        account.describe()
        return account


@dataclass(slots=True)
class Account:
    """One request's. Times are monotonic seconds; gaps are between tokens of one choice."""

    accounts: Accounts
    request: Request
    answer: Answer
    label: str | None
    span: Span
    start: float
    resumed: bool = False  # it had tokens before: the times of a whole request say nothing here
    replay: bool = False
    first: float | None = None
    last: float = 0.0
    worst: float = 0.0
    worst_at: float = 0.0  # seconds since the epoch, its end
    worst_position: int = 0  # of the token that ended it
    worst_choice: int = 0
    worst_began: float = 0.0
    gaps: deque[float] = field(default_factory=lambda: deque(maxlen=GAPS))  # the last ones, over all choices
    submitted: float | None = None
    closed: bool = False
    _latest: dict[int, float] = field(default_factory=dict)

    def describe(self) -> None:
        """What was asked, on the span."""
        if not self.span.is_recording():
            return
        sampling = self.request.sampling
        asked = {
            names.REQUEST_MAX_TOKENS: self.request.max_tokens,
            names.REQUEST_TEMPERATURE: sampling.temperature,
            names.REQUEST_TOP_P: sampling.top_p,
            names.REQUEST_TOP_K: sampling.top_k or None,
            names.REQUEST_SEED: sampling.seed,
            names.REQUEST_STREAM: self.answer.spec.stream,
            names.REQUEST_CHOICE_COUNT: self.request.n,
            names.REQUEST_FREQUENCY_PENALTY: sampling.frequency_penalty,
            names.REQUEST_PRESENCE_PENALTY: sampling.presence_penalty,
        }
        self.span.set_attributes({name: value for name, value in asked.items() if value is not None})

    def tokens(self, choice: int, position: int, fresh: int) -> None:
        """`fresh` tokens of a choice became known, from this position on."""
        if not fresh:
            return
        now = clock.monotonic()
        if self.first is None:
            self.first = now
            if not self.resumed:
                self._histogram(names.TIME_TO_FIRST_TOKEN).observe(now - self.start)
                self.accounts.recent.ttft.add(now - self.start, now)
                if vllm := self.accounts.vllm:
                    vllm.first(self.request.model, now - self.start, self.answer.prompt_tokens)
        before = self._latest.get(choice)
        gaps = self.accounts.metrics[names.TIME_BETWEEN_TOKENS]
        if before is not None:
            gap = now - before
            gaps.observe(gap)
            self.accounts.recent.tbt.add(gap, now)
            self.gaps.append(gap)
            if gap > self.worst:
                self.worst, self.worst_at, self.worst_position = gap, clock.wall(), position
                self.worst_choice, self.worst_began = choice, before
        if fresh > 1:
            self.accounts.recent.tbt.add(0.0, now, fresh - 1)
        if vllm := self.accounts.vllm:
            vllm.tokens(self.request.model, fresh, None if before is None else now - before)
        for _ in range(fresh - 1):
            gaps.observe(0.0)  # they came together: the tokens are counted, not the items
        self._latest[choice] = self.last = now

    def delivery(self) -> Delivery:
        """When what came was here."""
        wall = clock.wall() - clock.monotonic()
        return Delivery(
            submitted=wall + self.submitted if self.submitted and not self.resumed else 0.0,
            first=wall + self.first if self.first is not None else 0.0,
            choice=self.worst_choice,
            position=self.worst_position,
            began=wall + self.worst_began if self.worst else 0.0,
            seconds=self.worst,
        )

    def close(self, outcome: str, reason: str, status: int, words: str = "") -> None:
        """`reason`: the finish reasons, or the error's code; `words`: for people, where that says too little.
        Only the first call counts.
        """
        if self.closed:
            return
        self.closed = True
        error = "" if outcome == FINISHED else reason
        logged = {"request": self.request.id, "status": status, "client_request": self.label}
        if self.replay:
            self._describe_end(error)
            log.info("request %s replayed, it had ended before: %s", self.request.id, reason, extra=logged)
            return
        accounts, answer = self.accounts, self.answer
        accounts.running -= 1
        accounts.metrics[names.REQUESTS_RUNNING].set(accounts.running)
        accounts.metrics[names.REQUESTS].labels(outcome).inc()
        now = clock.monotonic()
        self._histogram(names.REQUEST_DURATION, error).observe(now - self.start)
        output = answer.output_tokens
        per_choice = output / len(answer.choices)
        if self.first is not None and per_choice > 1 and not self.resumed:
            self._histogram(names.TIME_PER_OUTPUT_TOKEN).observe((self.last - self.first) / (per_choice - 1))
        self._tell_vllm(outcome, now - self.start)
        if outcome == FINISHED:
            missed = self._missed()
            judged = ["tbt"] + ["ttft"] * (accounts.slo_ttft is not None and self.first is not None)
            for target in judged:
                met = "false" if target in missed else "true"
                accounts.metrics[names.SLO_REQUESTS].labels(target, met).inc()
        self._describe_end(error)
        log.info(
            "request %s %s: %d prompt, %d cached, %d output tokens, TTFT %s, worst gap %.0f ms, %s",
            self.request.id,
            outcome,
            answer.prompt_tokens,
            answer.cached_tokens,
            output,
            "none" if self.first is None else f"{(self.first - self.start) * 1e3:.0f} ms",
            self.worst * 1e3,
            words or reason,
            extra=logged,
        )

    def _describe_end(self, error: str) -> None:
        answer = self.answer
        self.span.set_attributes(
            {
                names.RESPONSE_ID: answer.id,
                names.RESPONSE_MODEL: self.request.model,
                names.RESPONSE_FINISH_REASONS: answer.finish_reasons,
                names.USAGE_INPUT_TOKENS: answer.prompt_tokens,
                names.USAGE_OUTPUT_TOKENS: answer.output_tokens,
                names.USAGE_CACHE_READ_INPUT_TOKENS: answer.cached_tokens,
            }
        )
        missed = self._missed()
        if missed:
            self.span.set_attribute(names.SLO_MISSED, ",".join(missed))
        if self.worst:
            told = {"pillion.seconds": self.worst, "pillion.position": self.worst_position}
            self.span.add_event(names.EVENT_LONGEST_GAP, told, tracing.nanoseconds(self.worst_at))
        if error:
            self.span.set_attribute(names.ERROR_TYPE, error)
            self.span.set_status(Status(StatusCode.ERROR, error))

    def _tell_vllm(self, outcome: str, seconds: float) -> None:
        vllm, answer, request = self.accounts.vllm, self.answer, self.request
        if vllm is None or outcome == PARKED:
            return
        if outcome != FINISHED:
            vllm.ended(request.model, ["abort" if outcome == ABORTED else "error"])
            return
        vllm.ended(request.model, answer.finish_reasons)
        whole = self.first is not None and not self.resumed
        decode = self.last - self.first if whole and self.first is not None else None
        outputs = [choice.known for choice in answer.choices]
        vllm.finished(request.id, request.model, answer.prompt_tokens, outputs, seconds, decode)

    def _missed(self) -> list[str]:
        accounts, first = self.accounts, self.first
        late = accounts.slo_ttft is not None and first is not None and first - self.start > accounts.slo_ttft
        return ["ttft"] * late + ["tbt"] * (self.worst > accounts.slo_tbt)

    def _histogram(self, metric: names.Metric, *more: str):  # type: ignore[no-untyped-def]
        operation = _OPERATIONS[self.answer.spec.form]
        labels: Sequence[str] = (operation, names.PROVIDER, self.request.model, *more)
        return self.accounts.metrics[metric].labels(*labels)
