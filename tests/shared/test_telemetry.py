"""Names, metrics, logs and trace contexts."""

import errno
import io
import json
import logging
import re
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client.parser import text_string_to_metric_families

from pillion.actors import Exit, Stop
from pillion.config import load
from pillion.telemetry import Metrics, logs, names, tracing
from pillion.telemetry.endpoint import endpoint
from pillion.telemetry.names import METRICS, Metric
from tests.promlint import problems

ROOT = Path(__file__).parents[2]


class TestNames:
    def test_are_all_in_the_table_and_each_once(self):
        assert len({metric.name for metric in METRICS}) == len(METRICS) > 30
        constants = {value for value in vars(names).values() if isinstance(value, Metric)}
        assert constants == set(METRICS)

    def test_are_all_set_by_a_service(self):
        # One that nobody sets is still exposed, as 0. Those of every process the endpoint itself sets.
        text = "\n".join(path.read_text() for path in (ROOT / "services").rglob("*.py"))
        taken = set(re.findall(r"\bnames\.([A-Z_]+)(?:\]|\)|, [a-z\"])", text))  # not where it is registered
        own = {name: value for name, value in vars(names).items() if isinstance(value, Metric)}
        assert [name for name, value in own.items() if value.layer != "process" and name not in taken] == []

    @pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
    def test_follow_the_conventions(self, metric: Metric):
        assert re.fullmatch(r"(pillion|gen_ai)_[a-z0-9_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert (metric.kind == "histogram") == bool(metric.buckets)
        assert list(metric.buckets) == sorted(set(metric.buckets))
        assert not re.search(r"(ms|millis|kb|mb|percent)(_|$)", metric.name), "seconds, bytes and shares"
        assert len(metric.help) > 8
        assert metric.help.endswith(".")
        unbounded = {"id", "request", "request_id", "user", "prompt", "tenant", "trace_id", "text"}
        assert not unbounded & set(metric.labels)

    def test_of_gen_ai_have_the_conventions_buckets(self):
        assert names.REQUEST_DURATION.buckets == tuple(round(0.01 * 2**k, 6) for k in range(14))
        assert names.REQUEST_DURATION.buckets[-1] == 81.92
        assert (names.TIME_TO_FIRST_TOKEN.buckets[0], names.TIME_TO_FIRST_TOKEN.buckets[-1]) == (0.001, 10.0)
        assert (names.TIME_PER_OUTPUT_TOKEN.buckets[0], names.TIME_PER_OUTPUT_TOKEN.buckets[-1]) == (
            0.01,
            2.5,
        )
        assert names.REQUEST_DURATION.labels[-1] == "error_type"
        assert "error_type" not in (*names.TIME_TO_FIRST_TOKEN.labels, *names.TIME_PER_OUTPUT_TOKEN.labels)


class TestMetrics:
    def test_are_exposed_as_the_table_says(self):
        metrics = Metrics("test", "1.2.3", METRICS)
        for metric in METRICS:
            each = metrics[metric]
            each = each.labels(*("x" for _ in metric.labels)) if metric.labels else each
            if metric.kind == "histogram":
                each.observe(0.02)
            else:
                each.inc()
        families = {family.name: family for family in text_string_to_metric_families(metrics.text().decode())}
        for metric in METRICS:
            family = families[metric.name.removesuffix("_total")]
            assert family.type == metric.kind
            assert family.documentation == metric.help
            assert any(sample.value for sample in family.samples)
        assert "_created" not in metrics.text().decode()
        assert problems(metrics.text().decode()) == []
        assert 'pillion_build_info{service="test",version="1.2.3"} 1.0' in metrics.text().decode()

    @pytest.mark.parametrize(
        "family, sample, finding",
        [
            ("counter", "a_total", "a: no help text"),
            ("", "a", "a: no type"),
            ("counter", "a", "a: a counter ends in _total"),
            ("gauge", "a_total", "a_total: only a counter ends in _total"),
            ("gauge", "a_sum", "a_sum: the suffix is a histogram's or summary's"),
            ("gauge", 'a{le="1"}', "a: the label le is a histogram's"),
            ("gauge", 'a{quantile="1"}', "a: the label quantile is a summary's"),
            ("gauge", 'a{aB="1"}', "a: aB is not lower case with underscores"),
            ("gauge", "a:b", "a:b: a:b is not lower case with underscores"),
            ("gauge", "gauge_x", "gauge_x: the name holds the type gauge"),
            ("gauge", "a_ms", "a_ms: ms is no base unit written out"),
            ("gauge", "a_milliseconds", "a_milliseconds: milliseconds is no base unit written out"),
        ],
    )
    def test_promtool_s_rules_find(self, family: str, sample: str, finding: str):
        name = sample.partition("{")[0]
        text = f"# TYPE {name} {family}\n" * bool(family) + f"{sample} 1\n"
        if finding != "a: no help text":
            text = f"# HELP {name} Of it.\n" + text
        assert problems(text) == [finding]

    def test_of_two_services_in_one_process_are_apart(self):
        one, two = (Metrics(name, "1", [names.PREEMPTIONS]) for name in ("one", "two"))
        one[names.PREEMPTIONS].inc(3)
        assert b"pillion_preemptions_total 3.0" in one.text()
        assert b"pillion_preemptions_total 0.0" in two.text()

    def test_that_a_service_did_not_ask_for_are_an_error(self):
        with pytest.raises(KeyError):
            _ = Metrics("one", "1", [names.PREEMPTIONS])[names.STEP_SECONDS]

    def test_are_served_and_the_port_is_given_back(self):
        metrics = Metrics("one", "1", [names.PREEMPTIONS])
        served = metrics.serve("127.0.0.1", 0)
        with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/metrics") as answer:
            assert answer.read().startswith(b"# HELP")
        served.close()
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", served.port)) == errno.ECONNREFUSED

    async def test_endpoint_is_off_unless_asked_for_and_says_what_to_do_about_a_taken_port(self):
        metrics = Metrics("one", "1", [])
        assert await endpoint(metrics, load({}, {}).config.telemetry) is None
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            config = load({"metrics_port": taken.getsockname()[1]}, {}).config.telemetry
            with pytest.raises(Stop, match=r"cannot serve metrics on 127.0.0.1:.*set --metrics-port") as stop:
                await endpoint(metrics, config)
        assert stop.value.code is Exit.USAGE


class TestLogs:
    def written(self, level: str, style: str, log: Any) -> str:
        stream = io.StringIO()
        logs.setup(level, style, "gateway", stream)
        log(logging.getLogger("pillion.somewhere"))
        return stream.getvalue()

    def test_are_json_off_a_terminal_with_extra_fields(self):
        text = self.written(
            "info", "auto", lambda log: log.info("got %d", 5, extra={"request": "r1", "odd": {1}})
        )
        line = json.loads(text)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
        assert line == {
            "level": "info", "service": "gateway", "logger": "pillion.somewhere", "message": "got 5",
            "request": "r1", "odd": [1],
        }  # fmt: skip

    def test_carry_the_trace(self):
        tracer = TracerProvider().get_tracer("t")

        def log(logger: logging.Logger) -> None:
            with tracer.start_as_current_span("s") as span:
                self.context = span.get_span_context()
                logger.warning("within")

        line = json.loads(self.written("info", "json", log))
        assert line["trace_id"] == f"{self.context.trace_id:032x}"
        assert line["span_id"] == f"{self.context.span_id:016x}"

    def test_are_lines_for_people_where_asked_for(self):
        text = self.written("info", "text", lambda log: log.error("fell"))
        assert re.fullmatch(r"\d\d:\d\d:\d\d ERROR   fell\n", text)

    def test_keep_an_exception_in_one_json_line(self):
        def log(logger: logging.Logger) -> None:
            try:
                raise ValueError("what\nbroke")
            except ValueError:
                logger.exception("failed")

        text = self.written("info", "json", log)
        assert text.count("\n") == 1
        assert "ValueError: what\nbroke" in json.loads(text)["exception"]

    @pytest.mark.parametrize("level, lines", [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
    def test_have_the_level_asked_for(self, level: str, lines: int):
        def log(logger: logging.Logger) -> None:
            for name in ("debug", "info", "warning", "error"):
                getattr(logger, name)("x")

        assert self.written(level, "json", log).count("\n") == lines

    def test_leave_out_the_chatter_of_libraries(self):
        def log(_: logging.Logger) -> None:
            logging.getLogger("httpx").info("GET /")
            logging.getLogger("httpx").warning("trouble")

        assert self.written("debug", "text", log).count("\n") == 1


class TestTraceContexts:
    @given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.sampled_from([0, 1]))
    def test_come_through_as_text(self, trace_id: int, span_id: int, flags: int):
        text = f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}"
        context = tracing.context(text)
        assert context is not None
        assert tracing.traceparent(trace.get_current_span(context)) == text

    @given(st.text(max_size=60))
    def test_that_are_none_start_a_trace(self, text: str):
        context = tracing.context(text)
        if context is not None:
            assert tracing.traceparent(trace.get_current_span(context))

    @pytest.mark.parametrize(
        "text",
        ["", "00", "00-" + "0" * 32 + "-" + "1" * 16 + "-01", "00-" + "1" * 32 + "-" + "0" * 16 + "-01",
         "00-" + "g" * 32 + "-" + "1" * 16 + "-01", "00-" + "1" * 31 + "-" + "1" * 16 + "-01",
         "00-" + "1" * 32 + "-" + "1" * 16 + "-zz"],
    )  # fmt: skip
    def test_malformed(self, text: str):
        assert tracing.context(text) is None

    def test_parent_and_child_are_of_one_trace(self):
        tracer = TracerProvider().get_tracer("t")
        parent = tracer.start_span("parent")
        child = tracer.start_span("child", tracing.context(tracing.traceparent(parent)))
        assert child.parent.span_id == parent.get_span_context().span_id
        assert child.get_span_context().trace_id == parent.get_span_context().trace_id

    def test_are_empty_where_tracing_is_off(self, monkeypatch: Any):
        for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
            monkeypatch.delenv(name, raising=False)
        tracing.setup("test", "1", "i")()
        span = trace.NoOpTracer().start_span("s")
        assert tracing.traceparent(span) == ""
        assert type(trace.get_tracer_provider()).__name__ == "ProxyTracerProvider"

    def test_switched_off_stays_off(self, monkeypatch: Any):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
        monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
        tracing.setup("test", "1", "i")()
        assert type(trace.get_tracer_provider()).__name__ == "ProxyTracerProvider"
