"""What existing vLLM dashboards ask for, told by one gateway: of its own requests, and of all replicas."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from pillion.contracts.entries import Facts, Heartbeat, Request, Usage
from pillion.telemetry import Metrics, vllm
from pillion.telemetry.names import Metric

ENDED = 1024  # requests that have ended, of which a word may still come
_REASONS = {"stop": "stop", "tool_calls": "stop", "length": "length"}


class Call(Protocol):
    """What is needed of `pillion.gateway.call.Call`."""

    @property
    def request(self) -> Request: ...


Beats = Callable[[], Iterable[tuple[Heartbeat, Facts]]]


class Vllm:
    """Fed by accounts, heartbeats and words on usage. `beats`: the last of each replica that speaks."""

    def __init__(self, metrics: Metrics, beats: Beats) -> None:
        self._metrics = metrics
        self._ended: OrderedDict[str, str] = OrderedDict()  # request to model
        metrics.registry.register(_Replicas(beats))

    # --- by request --------------------------------------------------------------------------------

    def first(self, model: str, seconds: float, prompt: int) -> None:
        """A request's first token came, `seconds` after its arrival; `prompt` tokens."""
        self._of(vllm.FIRST, model).observe(seconds)
        self._of(vllm.PROMPT_TOKENS, model).inc(prompt)

    def tokens(self, model: str, count: int, gap: float | None) -> None:
        """`count` tokens of a choice came together, `gap` seconds after those before."""
        self._of(vllm.OUTPUT_TOKENS, model).inc(count)
        gaps = [0.0] * (count - 1) + ([] if gap is None else [gap])
        for each in gaps:
            self._of(vllm.BETWEEN, model).observe(each)
            self._of(vllm.PER_TOKEN, model).observe(each)

    def finished(
        self, request: str, model: str, prompt: int, outputs: list[int], seconds: float, decode: float | None
    ) -> None:
        """`outputs`: tokens of each choice. `decode`: seconds from the first token to the last; None where
        that was not seen here.
        """
        self._ended[request] = model
        while len(self._ended) > ENDED:
            self._ended.popitem(last=False)
        longest = max(outputs)
        self._of(vllm.E2E, model).observe(seconds)
        self._of(vllm.PROMPT, model).observe(prompt)
        self._of(vllm.OUTPUT, model).observe(sum(outputs))
        self._of(vllm.MOST, model).observe(longest)
        if decode is not None:
            self._of(vllm.DECODED, model).observe(decode)
            if longest > 1:
                self._of(vllm.MEAN_PER_TOKEN, model).observe(decode / (longest - 1))

    def ended(self, model: str, reasons: Iterable[str]) -> None:
        """Choices ended, by their finish reasons, or by `abort` or `error`."""
        for reason in reasons:
            labels = (model, vllm.ALL, _REASONS.get(reason, reason))
            self._metrics[vllm.SUCCESS].labels(*labels).inc()

    def used(self, usage: Usage, running: Mapping[str, Call]) -> None:
        """A replica's word on first tokens: those of requests that run here, or have just ended, count."""
        firsts = dict(usage.first)
        for request, queued in usage.queued:
            call = running.get(request)
            model = call.request.model if call else self._ended.get(request)
            if model is not None:
                self._of(vllm.QUEUED, model).observe(queued)
                self._of(vllm.PREFILLED, model).observe(max(firsts.get(request, queued) - queued, 0.0))

    # --- by replica --------------------------------------------------------------------------------

    def beat(self, former: Heartbeat | None, beat: Heartbeat, model: str) -> None:
        """The steps between two heartbeats of one process of a replica."""
        if former is None or former.epoch != beat.epoch or beat.steps <= former.steps:
            return
        steps = beat.steps - former.steps
        tokens = beat.prefilled + beat.decoded - former.prefilled - former.decoded
        histogram = self._metrics[vllm.STEP_TOKENS].labels(model, beat.replica)
        for _ in range(steps):
            histogram.observe(tokens / steps)

    def _of(self, metric: Metric, model: str):  # type: ignore[no-untyped-def]
        return self._metrics[metric].labels(model, vllm.ALL)


class _Replicas:
    """Reads the last heartbeats at each scrape: their totals start anew with a replica's process."""

    def __init__(self, beats: Beats) -> None:
        self._beats = beats

    def collect(self) -> Iterator[Family]:
        families = {metric: _family(metric) for metric in vllm.BY_REPLICA}
        for beat, facts in self._beats():
            labels = (facts.model, beat.replica)
            values = {
                vllm.RUNNING: beat.running,
                vllm.WAITING: beat.waiting,
                vllm.GPU_USAGE: beat.kv_usage,
                vllm.KV_USAGE: beat.kv_usage,
                vllm.PREFIX_QUERIES: beat.prefix_queried,
                vllm.PREFIX_HITS: beat.prefix_hit,
                vllm.PREEMPTIONS: beat.preemptions,
            }
            for metric, value in values.items():
                families[metric].add_metric(labels, value)
            config = (str(facts.block_size), str(facts.num_blocks), facts.dtype)
            families[vllm.CACHE_CONFIG].add_metric((*labels, *config), 1)
        yield from families.values()


def _family(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return kind(metric.name, metric.help, labels=metric.labels)
