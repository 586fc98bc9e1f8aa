"""What dashboards for vLLM ask for: quantiles and means of latencies, rates, queue, cache, lengths."""

from collections.abc import Iterator

from pillion.ops.dashboards.panels import WINDOW
from pillion.telemetry import vllm
from pillion.telemetry.names import Metric

_LATENCIES = (vllm.E2E, vllm.FIRST, vllm.BETWEEN, vllm.PER_TOKEN, vllm.MEAN_PER_TOKEN)
_PHASES = (vllm.QUEUED, vllm.PREFILLED, vllm.DECODED, vllm.MOST)
_HEATS = (vllm.PROMPT, vllm.OUTPUT, vllm.STEP_TOKENS)
_RATES = (vllm.PROMPT_TOKENS, vllm.OUTPUT_TOKENS, vllm.PREEMPTIONS, vllm.PREFIX_QUERIES, vllm.PREFIX_HITS)
_GAUGES = (vllm.RUNNING, vllm.WAITING, vllm.GPU_USAGE, vllm.KV_USAGE, vllm.CACHE_CONFIG)


def queries(model: str) -> Iterator[str]:
    """Each as a panel sends it once its variables are filled in; the window is still `$__rate_interval`."""

    def of(metric: Metric, suffix: str = "") -> str:
        return f'{metric.name}{suffix}{{model_name="{model}"}}'

    for metric in _LATENCIES:
        for quantile in (0.5, 0.9, 0.95, 0.99):
            buckets = f"sum by (le) (rate({of(metric, '_bucket')}[{WINDOW}]))"
            yield f"histogram_quantile({quantile}, {buckets})"
        yield f"rate({of(metric, '_sum')}[{WINDOW}]) / rate({of(metric, '_count')}[{WINDOW}])"
    for metric in _PHASES:
        yield f"rate({of(metric, '_sum')}[{WINDOW}])"
    for metric in _HEATS:
        yield f"sum by (le) (increase({of(metric, '_bucket')}[{WINDOW}]))"
    for metric in _RATES:
        yield f"rate({of(metric)}[{WINDOW}])"
    for metric in _GAUGES:
        yield of(metric)
    yield f"sum by (finished_reason) (increase({of(vllm.SUCCESS)}[{WINDOW}]))"
    hits, asked = of(vllm.PREFIX_HITS), of(vllm.PREFIX_QUERIES)
    yield f"sum(rate({hits}[{WINDOW}])) / sum(rate({asked}[{WINDOW}]))"
    yield f"count by (model_name) ({vllm.OUTPUT_TOKENS.name})"  # the list of models to choose from
