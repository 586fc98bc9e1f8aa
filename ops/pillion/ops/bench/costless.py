"""An executor that computes nothing: `python -m pillion.ops.bench.costless`, for figures of all the rest.

Its process is a gRPC server with the executor's own servicer, thread, slots and metrics. In the engine's
place is a table of tokens, drawn from a seed; a step takes as long as was asked for last, by default no time.
"""

import asyncio
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import click
import grpc.aio
import uvloop

from pillion.config import Config, load
from pillion.contracts import executor_pb2, executor_pb2_grpc
from pillion.contracts.access import Access
from pillion.contracts.entries import Facts
from pillion.executor import listen
from pillion.executor.compute import Compute
from pillion.executor.engine import Parts
from pillion.executor.models.registry import read_spec
from pillion.executor.results import Results
from pillion.executor.servicer import Servicer
from pillion.executor.slots import Slots
from pillion.executor.spans import Spans
from pillion.executor.watch import Watch
from pillion.executor.work import Work
from pillion.modelfiles import locate
from pillion.ops.role import version
from pillion.telemetry import Metrics, logs, names, tracing

BLOCK = 16  # positions
CONTEXT = 16_384  # tokens a sequence
_TABLE = 4096
_END_SECONDS = 5.0


class Costless:
    """The engine: each sequence reads the table from a place of its own on, and ends as a real one would."""

    def __init__(self, facts: Facts, seed: int) -> None:
        tokens = range(facts.vocab_size // 8, facts.vocab_size)  # behind those with a meaning of their own
        self.facts = facts
        self.parts: Sequence[Parts] = ()
        self.step_seconds = 0.0
        self._table = random.Random(seed).choices(tokens, k=_TABLE)
        self._slots = Slots(
            facts.max_num_seqs, facts.max_model_len, facts.num_blocks, facts.block_size, facts.end_tokens
        )

    def reset(self) -> None:
        self._slots.clear()

    def compile(self, place: int, message: executor_pb2.Constraint) -> None:
        """Nothing is drawn here that a constraint could keep."""

    def run(self, plan: executor_pb2.Plan) -> executor_pb2.StepResult:
        """Raises BadPlan for a plan that names what cannot be."""
        began = time.perf_counter()
        self._slots.check(plan)
        self._slots.apply(plan)
        results, steps = Results(), 0
        for slot, granted in zip(plan.slot, plan.sample, strict=True):
            sequence = self._slots[slot]
            for step in range(granted):
                if sequence.finish != executor_pb2.RUNNING:
                    break
                token = self._table[(sequence.incarnation * 31 + sequence.length) % _TABLE]
                self._slots.append(slot, token)
                results.add(slot, sequence, token, None)
                steps = max(steps, step + 1)
        steps = steps or bool(plan.slot)
        time.sleep(max(0.0, began + steps * self.step_seconds - time.perf_counter()))
        each = (time.perf_counter() - began) / max(steps, 1)
        self.parts = [Parts(0.0, each, 0.0, 0.0, len(plan.slot), len(plan.slot), Work(0, 0))] * steps
        return results.message(plan.step, steps)


def facts_of(config: Config) -> Facts:
    """What it says of itself: the model's vocabulary, and blocks for all slots. Raises ModelFileError."""
    located = locate(config.model.model, config.model.revision, config.cache_path, weights=False)
    spec = read_spec(located)
    slots = config.scheduler.max_num_seqs
    return Facts(
        model=config.model.served_model_name or located.name,
        fingerprint="costless",
        max_model_len=CONTEXT,
        vocab_size=spec.vocab_size,
        end_tokens=spec.end_tokens,
        block_size=BLOCK,
        num_blocks=1 + slots * CONTEXT // BLOCK,
        max_num_seqs=slots,
        max_step_tokens=max(config.scheduler.max_num_batched_tokens or 0, slots),
        tile=BLOCK,
        dtype="none",
        backend="none",
    )


async def serve(config: Config, engine: Costless) -> None:
    """Serves until SIGTERM. Raises ListenError."""
    access, compute = Access(config.executor), Compute()
    metrics = Metrics(
        "executor", version(), (metric for metric in names.METRICS if metric.layer == "executor")
    )
    servicer = Servicer(compute, Watch(metrics, Spans(tracing.tracer())))
    server = grpc.aio.server(interceptors=[listen.Door(access)])
    executor_pb2_grpc.add_ExecutorServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    listen.bind(server, listen.address(config), access)
    await server.start()
    servicer.ready(engine)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    servicer.end()
    await server.stop(grace=1.0)
    await compute.close(_END_SECONDS)


def _paced(engine: Costless, descriptor: int) -> None:
    with socket.socket(fileno=descriptor) as other, other.makefile("rw") as lines:
        for line in lines:
            engine.step_seconds = float(line)
            lines.write(line)
            lines.flush()


@click.command()
@click.option("--config", "settings", required=True, type=click.Path(path_type=Path), help="the stack's")
@click.option("--seed", default=1, show_default=True, help="of the tokens")
@click.option(
    "--pace", type=int, help="a socket: each line is how many seconds a step takes from its echo on"
)
def main(settings: Path, seed: int, pace: int | None) -> None:
    """Serves a scheduler that dials the executor of these settings."""
    config = load(environ={}, file=settings).config
    logs.setup(config.telemetry.log_level, config.telemetry.log_format, "executor")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    engine = Costless(facts_of(config), seed)
    if pace is not None:
        threading.Thread(target=_paced, args=(engine, pace), daemon=True).start()
    uvloop.run(serve(config, engine))


if __name__ == "__main__":
    main()
