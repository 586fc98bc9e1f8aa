"""One service in this process: `pillion gateway`, `admission`, `scheduler`, `executor`."""

import gc
import os
from importlib import import_module, metadata

import uvloop

from pillion import ids
from pillion.config import Config
from pillion.telemetry import logs, tracing

# How long an OpenMP thread spins at a barrier before it sleeps; read when torch is loaded. The default of
# some 300,000 takes a whole time slice from the thread that it waits for, as soon as the cores are shared.
SPINS = "2000"


def run(role: str, config: Config) -> int:
    """Runs the service to its end. Returns its exit code."""
    logs.setup(config.telemetry.log_level, config.telemetry.log_format, role)
    # gRPC's own lines go round the log's format, and repeat what its errors say.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    flush = tracing.setup(role, version(), ids.process_id())
    try:
        # Imported here: only the executor may import torch, and only it does.
        service = import_module(f"pillion.{role}.service")
        # What was imported stays; a full collection that looked through it would hold a step for 0.1 s.
        gc.freeze()
        return int(uvloop.run(service.run(config)))
    finally:
        flush()


def version() -> str:
    return metadata.version("pillion")
