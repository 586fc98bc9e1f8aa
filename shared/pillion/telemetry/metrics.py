"""Metrics of one process: made from the names' table, scraped from one endpoint."""

import asyncio
import threading
from collections.abc import Iterable
from typing import Any
from wsgiref.simple_server import WSGIServer

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from pillion.telemetry import names
from pillion.telemetry.names import Metric

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """`metrics[names.STEP_SECONDS].observe(x)`. The registry is its own: tests and services never share."""

    def __init__(self, service: str, version: str, metrics: Iterable[Metric]) -> None:
        self.registry = CollectorRegistry()
        prometheus_client.ProcessCollector(registry=self.registry)
        self._made: dict[str, Any] = {
            metric.name: self._make(metric)
            for metric in dict.fromkeys((*metrics, names.TASKS, names.BUILD_INFO, names.UNREADABLE))
        }
        self._made[names.BUILD_INFO.name].labels(service=service, version=version).set(1)

    def __getitem__(self, metric: Metric) -> Any:
        return self._made[metric.name]

    def count_tasks(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on each scrape counts the loop's tasks; any thread may scrape."""
        self[names.TASKS].set_function(lambda: float(len(asyncio.all_tasks(loop))))

    def unreadable(self, kind: str) -> None:
        """An entry could not be read."""
        self[names.UNREADABLE].labels(kind).inc()

    def text(self) -> bytes:
        """The exposition in Prometheus' text format."""
        return prometheus_client.generate_latest(self.registry)

    def serve(self, host: str, port: int) -> "Endpoint":
        """Serves /metrics from a thread of its own. Port 0 takes a free one. Raises OSError."""
        server, thread = prometheus_client.start_http_server(port, addr=host, registry=self.registry)
        return Endpoint(server, thread)

    def _make(self, metric: Metric) -> Any:
        if metric.kind == "counter":
            return Counter(metric.name, metric.help, metric.labels, registry=self.registry)
        if metric.kind == "gauge":
            return Gauge(metric.name, metric.help, metric.labels, registry=self.registry)
        return Histogram(
            metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=self.registry
        )


class Endpoint:
    """A running metrics server."""

    def __init__(self, server: WSGIServer, thread: threading.Thread) -> None:
        self.port: int = server.server_port
        self._server = server
        self._thread = thread

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)
