"""The queries of dashboards for vLLM cover every name that is promised, and ask for no other."""

from pillion.ops.dashboards.live import targets
from pillion.ops.dashboards.vllm import queries
from pillion.telemetry import vllm
from tests.promql import problems, series_of, used


def test_every_name_is_asked_for_and_no_other() -> None:
    series = series_of(vllm.METRICS)
    asked: set[str] = set()
    for query in queries("demo"):
        assert problems(query, series) == []
        asked |= set(used(query))
    for metric in vllm.METRICS:
        assert asked & {metric.name, f"{metric.name}_bucket", f"{metric.name}_sum"}, metric.name


def test_jobs_are_named_by_role() -> None:
    metrics = {"gateway": "http://127.0.0.1:8000/metrics", "scheduler": "http://127.0.0.1:9/metrics"}
    assert targets(metrics) == {
        "pillion-gateway": ["127.0.0.1:8000"],
        "pillion-scheduler": ["127.0.0.1:9"],
    }
