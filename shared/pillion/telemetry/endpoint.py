"""The metrics endpoint as an actor."""

import asyncio
import logging

from pillion.actors import Exit, Stop
from pillion.config import Telemetry
from pillion.telemetry.metrics import Metrics

log = logging.getLogger(__name__)


async def endpoint(metrics: Metrics, config: Telemetry) -> None:
    """Serves the metrics until it is cancelled; returns at once where no port is set. Raises Stop."""
    metrics.count_tasks(asyncio.get_running_loop())
    if config.metrics_port is None:
        return
    host, port = config.metrics_host, config.metrics_port
    try:
        served = metrics.serve(host, port)
    except OSError as error:
        reason = f"cannot serve metrics on {host}:{port}: {error.strerror}; set --metrics-port"
        raise Stop(Exit.USAGE, reason) from None
    log.info("metrics on http://%s:%d/metrics", host, served.port)
    try:
        await asyncio.Event().wait()
    finally:
        served.close()
