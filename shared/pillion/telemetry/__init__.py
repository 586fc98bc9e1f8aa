"""Names, metrics, spans and logs."""

from pillion.telemetry import logs, names, tracing
from pillion.telemetry.metrics import Endpoint, Metrics

__all__ = ["Endpoint", "Metrics", "logs", "names", "tracing"]
