"""The executor's process: a gRPC server that answers at once, while the model is loaded beside it."""

import asyncio
import logging
import os
import resource
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc.aio

from pillion.actors import Exit, Stop, Supervisor
from pillion.config import Config, ConfigError
from pillion.contracts import executor_pb2_grpc
from pillion.contracts.access import Access
from pillion.executor import listen
from pillion.executor.compute import Compute
from pillion.executor.loading import load
from pillion.executor.servicer import Servicer
from pillion.executor.spans import Spans
from pillion.executor.watch import Watch
from pillion.modelfiles import ModelFileError
from pillion.telemetry import Metrics, names, tracing
from pillion.telemetry.endpoint import endpoint

log = logging.getLogger(__name__)

_END_SECONDS = 5.0  # for the step that runs when the process ends
_OPTIONS: Sequence[tuple[str, Any]] = (
    ("grpc.max_receive_message_length", 64 << 20),  # a plan may bring many long prompts
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),  # pings that a stall held back come together: nobody's fault
    ("grpc.so_reuseport", 0),  # two executors on one port are a mistake, not a pool
)


async def run(config: Config) -> int:
    """Serves until SIGTERM. Returns the exit code."""
    try:
        access = Access(config.executor)
    except ConfigError as error:
        log.error("%s", error)
        return Exit.USAGE
    compute = Compute()
    metrics = Metrics("executor", version("pillion"), (m for m in names.METRICS if m.layer == "executor"))
    servicer = Servicer(compute, Watch(metrics, Spans(tracing.tracer())))
    supervisor = Supervisor("executor", config.gateway.drain_timeout)
    bound = asyncio.Event()

    async def model() -> None:
        await bound.wait()  # a fetch makes files, which it must not do while the address is bound
        try:
            loaded = await compute.call(lambda: load(config, log.info))
        except (ModelFileError, ConfigError) as error:
            raise Stop(Exit.USAGE, str(error)) from None
        servicer.ready(loaded.engine)
        for line in loaded.lines:
            log.info("%s", line)
        log.info("ready; %d MiB resident", resident() >> 20)

    async def server() -> None:
        grpc_server = grpc.aio.server(interceptors=[listen.Door(access)], options=_OPTIONS)
        executor_pb2_grpc.add_ExecutorServicer_to_server(servicer, grpc_server)  # type: ignore[no-untyped-call]
        try:
            target = listen.bind(grpc_server, listen.address(config), access)
        except listen.ListenError as error:
            raise Stop(Exit.USAGE, str(error)) from None
        await grpc_server.start()
        log.info("listens on %s", target)
        bound.set()
        try:
            await grpc_server.wait_for_termination()
        finally:
            servicer.end()
            await grpc_server.stop(grace=1.0)

    # A model that fails to load fails again: no restart.
    supervisor.add("model", model, max_restarts=0)
    supervisor.add("server", server)
    supervisor.add("engine", lambda: compute.guard(config.scheduler.step_timeout))
    supervisor.add("metrics", lambda: endpoint(metrics, config.telemetry))
    supervisor.on_drain(servicer.drain, servicer.hand_on)
    code = await supervisor.run()
    if not await compute.close(_END_SECONDS):
        # A thread in the middle of a step or of loading would keep the process alive.
        if code is Exit.DRAINED and compute.busy:
            log.error("the step that runs does not end; the engine died")
            code = Exit.ENGINE_DIED
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def resident() -> int:
    """Bytes of this process in memory; the highest so far where /proc does not tell."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS counts bytes
