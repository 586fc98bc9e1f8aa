"""Rates tried on a virtual clock: what the settings would do, with steps as long as a cost model says."""

from dataclasses import replace
from pathlib import Path

from pillion.config import Config
from pillion.ops.bench.offered import Offered
from pillion.ops.bench.traffic import seconds_of
from pillion.ops.measure import Slo
from pillion.ops.report import Report, words
from pillion.ops.report.origin import origin
from pillion.ops.simulate.run import Simulation, facts_of, simulate
from pillion.ops.simulate.told import over_time
from pillion.steptime import load

from .find import Tried, find
from .search import Targets
from .told import report


async def simulated(
    config: Config,
    file: str,
    offered: Offered,
    *,
    ttft: float,
    tbt: float,
    delay: float,
    drain: float,
    start: float,
    tolerance: float,
    probes: int,
    repeats: int,
) -> Report:
    """Of the settings, with the cost model in `file`. Raises CostModelError, NoLoad, NoCapacity."""
    targets, slo, cost = Targets(tbt, delay), Slo(ttft, tbt), load(Path(file))
    asked = Simulation(
        config=config,
        facts=facts_of(config, cost),
        seconds=cost.seconds,
        ways=cost.ways,
        ratios=cost.ratios,
        slo=slo,
        replicas=config.stack.replicas,
    )

    async def attempt(rate: float, repeat: int, number: int) -> Tried:
        due = offered.due(rate, repeat)
        seed = offered.seed + repeat
        result = simulate(replace(asked, seed=seed, horizon=due[-1].at + drain), iter(due))
        return Tried(result.tally, seconds_of(offered, due), plots=tuple(over_time(result.watch)))

    found = await find(attempt, targets, start=start, tolerance=tolerance, most=probes, repeats=repeats)
    made_by = cost.provenance
    provenance = origin(
        **{"cost model": f"{cost.hash}: {made_by.model} on {made_by.hardware}, {made_by.date}"},
        seed=offered.seed,
        load=offered.told(),
        scheduler={
            name: getattr(config.scheduler, name)
            for name in ("policy", "max_num_seqs", "max_num_batched_tokens", "slo_tbt")
        },
    )
    return report(f"Simulated capacity: {config.scheduler.policy}", provenance, *found, targets, slo)
