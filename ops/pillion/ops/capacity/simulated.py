"""Rates tried on a virtual clock: what the settings would do, with steps as long as a cost model says."""

from dataclasses import replace
from pathlib import Path

from pillion.config import Config
from pillion.ops.bench.offered import Offered
from pillion.ops.bench.traffic import seconds_of
from pillion.ops.report import Report
from pillion.ops.report.origin import origin
from pillion.ops.simulate.run import Simulation, facts_of, simulate
from pillion.ops.simulate.told import steps
from pillion.steptime import load

from .find import Asked, Tried, find
from .told import report


async def simulated(
    config: Config, file: str, offered: Offered, asked: Asked, stages: int = 1, stage_latency: float = 0.0
) -> Report:
    """Of the settings, with the cost model in `file`, over so many pipeline stages, so many seconds apart.

    Raises CostModelError, NoLoad, NoCapacity.
    """
    cost = load(Path(file))
    simulation = Simulation(
        config=config,
        facts=facts_of(config, cost, stages),
        seconds=cost.seconds,
        ways=cost.ways,
        ratios=cost.ratios,
        slo=asked.slo,
        replicas=config.stack.replicas,
        known=cost,
        hop=lambda rows: stage_latency,
    )

    async def attempt(rate: float, repeat: int, number: int) -> Tried:
        due = offered.due(rate, repeat)
        seed = offered.seed + repeat
        result = simulate(replace(simulation, seed=seed, horizon=due[-1].at + asked.drain), iter(due))
        return Tried(result.tally, seconds_of(offered, due), plots=tuple(steps(result.watch)))

    found = await find(attempt, asked)
    made_by = cost.provenance
    provenance = origin(
        **{"cost model": f"{cost.hash}: {made_by.model} on {made_by.hardware}, {made_by.date}"},
        **{"pipeline stages": stages},
        seed=offered.seed,
        load=offered.told(),
        scheduler={
            name: getattr(config.scheduler, name)
            for name in ("policy", "max_num_seqs", "max_num_batched_tokens", "slo_tbt")
        },
    )
    return report(f"Simulated capacity: {config.scheduler.policy}", provenance, *found, asked)
