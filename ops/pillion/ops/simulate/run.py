"""A simulation, from what it is asked for to what came of it."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pillion.config import Config
from pillion.contracts.entries import Facts
from pillion.ops.measure import Slo, Tally
from pillion.ops.traces import Arrival, Closed
from pillion.scheduler.core import Core
from pillion.steptime import StepTime, Ways

from .bubbles import Bubbles
from .clients import MODEL, Clients
from .clock import Clock
from .executor import Drawn, Executor, Seconds
from .front import Admitted
from .replica import Replica
from .stages import Hop, Stages, at_once
from .watch import Watch

BLOCK_SIZE, BLOCKS = 16, 16_384  # of an executor of which nothing else is said, block 0 included
STEP_TOKENS = 512  # the most a step computes, where no budget is set: the executor's own default
CONTEXT = 1 << 20  # tokens; the pool is the limit
COUNTERS = ("steps", "preemptions", "recomputed_tokens", "queried_tokens", "hit_tokens")


@dataclass(frozen=True, slots=True)
class Simulation:
    """All that decides what comes of it. The same one gives the same result."""

    config: Config
    facts: Facts
    seconds: Seconds  # of a forward pass
    ways: Ways
    ratios: tuple[
        float, ...
    ]  # quantiles of measured over predicted time; none: a step takes what is predicted
    slo: Slo
    seed: int = 1
    replicas: int = 1
    admission: bool = False  # with the real policy before the replicas; always where there are several
    known: StepTime | None = None  # what schedulers know of steps' times; none: they learn
    horizon: float | None = None  # seconds after which what has not ended is unfinished
    hop: Hop = at_once  # between the executor's stages


@dataclass(frozen=True, slots=True)
class Result:
    tally: Tally
    watch: Watch
    counters: dict[str, int]  # over all replicas
    seconds: float  # in which requests were due
    ended: float  # when the last had ended
    bubbles: Bubbles | None = None  # where an executor has several stages

    def summary(self) -> dict[str, Any]:
        counters = self.counters
        queried = counters["queried_tokens"]
        return {
            "requests": self.tally.summary(self.seconds or 1.0),
            "steps": self.watch.summary(),
            "counters": counters | {"hit_share": counters["hit_tokens"] / queried if queried else None},
            "ended_s": self.ended,
            **({} if self.bubbles is None else {"pipeline": self.bubbles.summary(self.ended)}),
        }


def facts_of(config: Config, model: StepTime, stages: int = 1) -> Facts:
    """Of an executor with these settings, the cost model's tile, and so many pipeline stages."""
    scheduler, executor = config.scheduler, config.executor
    return Facts(
        model=MODEL,
        fingerprint=model.hash,
        max_model_len=config.model.max_model_len or CONTEXT,
        vocab_size=1 << 17,
        end_tokens=(),
        block_size=executor.block_size or BLOCK_SIZE,
        num_blocks=executor.num_kv_blocks or BLOCKS,
        max_num_seqs=scheduler.max_num_seqs,
        max_step_tokens=max(scheduler.max_num_batched_tokens or STEP_TOKENS, scheduler.max_num_seqs),
        tile=model.tile,
        dtype=model.provenance.dtype or "none",
        backend=model.provenance.backend or "none",
        pp=stages,
    )


def simulate(
    asked: Simulation,
    arrivals: Iterator[Arrival],
    closed: Closed | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Result:
    """Runs until all that arrived has ended, or to the horizon.

    `progress` gets the requests sent so far and the time, now and then.
    """
    clock, watch = Clock(), Watch(asked.facts.tile)
    stages = asked.facts.pp
    bubbles = Bubbles(stages, asked.replicas) if stages > 1 else None
    clients = Clients(clock, arrivals, closed, Tally(asked.slo), watch, asked.seed, progress, bubbles)
    with_admission = asked.admission or asked.replicas > 1
    admitted = Admitted(asked.config, clock, clients) if with_admission else None
    listener = clients if admitted is None else admitted
    replicas = []
    for number in range(asked.replicas):
        name = str(number)
        drawn = Drawn(asked.seconds, asked.ratios, random.Random(f"{asked.seed} {name}"))
        core, executor = Core(asked.config.scheduler), Executor(drawn)
        chain = Stages(stages, asked.hop)
        replicas.append(Replica(name, core, executor, asked.facts, asked.ways, clock, listener, chain))
        if admitted is not None:
            admitted.add(replicas[-1])
        replicas[-1].connect(asked.known)
    submit = admitted.submit if admitted is not None else replicas[0].submit
    clients.start(lambda request: clock.at(clock.now + asked.ways.inward, submit, request))
    cores = [replica.core.snapshot for replica in replicas]
    watch.look(clock, cores, lambda: 0 if admitted is None else len(admitted))
    if asked.horizon is not None:
        clock.at(asked.horizon, clients.stop)
    clock.run(lambda: clients.busy)
    snapshots = [replica.core.snapshot(clock.now) for replica in replicas]
    return Result(
        tally=clients.tally,
        watch=watch,
        counters={name: sum(getattr(seen, name) for seen in snapshots) for name in COUNTERS},
        seconds=clients.last if closed is None else clock.now,
        ended=clock.now,
        bubbles=bubbles,
    )
