"""Sends a load to a running stack, simulates the same arrivals with the stack's own settings, and compares.

The cost model stands before anything is sent. Simulations run before the load does, so that they take no core
from what is measured; where the stack records, each run is simulated once more afterwards, at the pace that
the machine then had: what is off there is not the machine's drift.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
import msgspec

from pillion import clock
from pillion.config import Config
from pillion.contracts.entries import Facts
from pillion.ops import banner, stack
from pillion.ops.bench import delays
from pillion.ops.bench.client import session
from pillion.ops.bench.offered import Offered
from pillion.ops.bench.server import NoServer, Server
from pillion.ops.bench.traffic import Live, headline, seconds_of
from pillion.ops.measure import Slo, Tally
from pillion.ops.profile import served
from pillion.ops.simulate.clients import MODEL
from pillion.ops.simulate.executor import Seconds
from pillion.ops.simulate.run import Simulation, simulate
from pillion.ops.traces import Arrival
from pillion.scheduler.measured import Measured
from pillion.scheduler.recorded import NoRecording
from pillion.steptime import StepTime

from .compared import Summary
from .pace import Paced, evened, pace

DRAIN = 60.0  # seconds after the last arrival

Model = Callable[[Config, int], Awaitable[StepTime]]
"""The cost model for a repeat, of a stack with these settings, frozen before any of it is sent."""


@dataclass(slots=True)
class Run:
    """One rate, one repeat."""

    measured: Summary
    simulated: Summary
    between: tuple[float, float]  # when it was measured, seconds of the monotonic clock
    pace: float | None = None  # measured over predicted time of its steps
    paced: Summary | None = None  # simulated again, at that pace


@dataclass(slots=True)
class Fidelity:
    """What came of it. Runs by rate, in the order of the repeats; a model for each repeat."""

    server: Server
    models: list[StepTime] = field(default_factory=list)
    runs: dict[float, list[Run]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Twin:
    """A stack as the simulator has it."""

    config: Config
    facts: Facts
    offered: Offered
    slo: Slo

    def run(self, model: StepTime, rate: float, repeat: int, at_pace: float | None = None) -> Summary:
        """The arrivals of that run, with admission as the stack has it."""
        due = self.offered.due(rate, repeat)
        seconds: Seconds = model.seconds if at_pace is None else Paced(model, at_pace)
        ratios = model.ratios if at_pace is None else evened(model.ratios)
        return self._tally(model, seconds, ratios, due, repeat).summary(seconds_of(self.offered, due))

    def _tally(
        self,
        model: StepTime,
        seconds: Seconds,
        ratios: tuple[float, ...],
        due: Sequence[Arrival],
        repeat: int,
    ) -> Tally:
        asked = Simulation(
            config=self.config,
            facts=msgspec.structs.replace(self.facts, model=MODEL),
            seconds=seconds,
            ways=model.ways,
            ratios=ratios,
            slo=self.slo,
            seed=self.offered.seed + repeat,
            replicas=self.config.stack.replicas,
            admission=True,
            known=Measured(self.config).of(self.facts),
            horizon=due[-1].at + DRAIN,
        )
        return simulate(asked, iter(due)).tally


async def measure(
    config: Config,
    model_for: Model,
    offered: Offered,
    rates: Sequence[float],
    repeats: int,
    slo: Slo,
    recordings: Path | None = None,
) -> Fidelity:
    """At each rate, so many times. Raises NoServer, NoLoad, NoRecording and what `model_for` does."""
    here = stack.running(config)
    if here is None:
        raise NoServer(stack.absent(config))
    facts = await banner.replica_facts(here)
    if facts is None:
        raise NoServer("the stack has no replica yet")
    twin = Twin(here, facts, offered, slo)
    at = stack.address(config)
    async with session(at.key, at.certificate) as http:
        server = Server(http, at.url)
        await server.meet()
        live = Live(server, http, await delays.find(http, config, server.url), slo, DRAIN)
        found = Fidelity(server, runs={rate: [] for rate in rates})
        for repeat in range(repeats):
            model = await model_for(alike(config, here), repeat)
            found.models.append(model)
            before = [twin.run(model, rate, repeat) for rate in rates]
            for place, (rate, simulated) in enumerate(zip(rates, before, strict=True)):
                began = clock.monotonic()
                seen = await live.run(offered, rate, repeat, repeat * len(rates) + place)
                between = (began, clock.monotonic())
                found.runs[rate].append(Run(seen.tally.summary(seen.seconds), simulated, between))
                click.echo(f"{rate:g}/s: {headline(seen)}", err=True)
    if recordings is not None:
        again(found, twin, served.read(recordings).steps)
    return found


def alike(config: Config, here: Config) -> Config:
    """For another stack that serves like the one that runs `here`, with addresses of its own."""
    executor = msgspec.structs.replace(here.executor, executor=config.executor.executor)
    return msgspec.structs.replace(config, model=here.model, scheduler=here.scheduler, executor=executor)


def again(found: Fidelity, twin: Twin, steps: Sequence[served.Step]) -> None:
    """Simulates each run once more, at its own pace. Raises NoRecording for one without steps."""
    for rate, runs in found.runs.items():
        for repeat, (model, run) in enumerate(zip(found.models, runs, strict=True)):
            try:
                run.pace = pace(steps, model, run.between)
            except ValueError as error:
                raise NoRecording(str(error)) from None
            run.paced = twin.run(model, rate, repeat, run.pace)
