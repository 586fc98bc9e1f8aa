"""Sends a load to a running stack, simulates the same arrivals with the stack's own settings, and compares.

The cost model stands before anything is sent. Simulations run before the load does, so that they take no core
from what is measured.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click
import msgspec

from pillion.config import Config
from pillion.contracts.entries import Facts
from pillion.ops import banner, stack
from pillion.ops.bench import delays
from pillion.ops.bench.client import session
from pillion.ops.bench.offered import Offered
from pillion.ops.bench.server import NoServer, Server
from pillion.ops.bench.traffic import Live, headline, provenance, seconds_of
from pillion.ops.measure import DEFINITIONS, Slo, Tally
from pillion.ops.report import Figure, Report, Table
from pillion.ops.simulate.clients import MODEL
from pillion.ops.simulate.run import Simulation, simulate
from pillion.ops.traces import Arrival
from pillion.scheduler.measured import Measured
from pillion.steptime import StepTime

from .compared import Compared, compared

DRAIN = 60.0  # seconds after the last arrival


async def measure(
    config: Config,
    model: StepTime,
    offered: Offered,
    rates: Sequence[float],
    repeats: int,
    slo: Slo,
) -> Report:
    """At each rate, so many times. Raises NoServer, NoLoad."""
    here = stack.running(config)
    if here is None:
        raise NoServer(stack.absent(config))
    facts = await banner.replica_facts(here)
    if facts is None:
        raise NoServer("the stack has no replica yet")
    runs: dict[float, tuple[list[Tally], list[Tally]]] = {rate: ([], []) for rate in rates}
    seconds: dict[tuple[float, int], float] = {}
    for repeat in range(repeats):
        for rate in rates:
            due = offered.due(rate, repeat)
            seconds[rate, repeat] = seconds_of(offered, due)
            runs[rate][1].append(simulated(here, facts, model, due, slo, offered.seed + repeat))
    async with session() as http:
        server = Server(http, stack.url(here))
        await server.meet()
        live = Live(server, http, await delays.find(http, config, server.url), slo, DRAIN)
        for repeat in range(repeats):
            for place, rate in enumerate(rates):
                seen = await live.run(offered, rate, repeat, repeat * len(rates) + place)
                runs[rate][0].append(seen.tally)
                click.echo(f"{rate:g}/s: {headline(seen)}", err=True)
    told = {
        rate: tuple(
            [tally.summary(seconds[rate, repeat]) for repeat, tally in enumerate(tallies)] for tallies in both
        )
        for rate, both in runs.items()
    }
    return report(provenance(server, offered, slo) | {"cost model": model.hash}, told)


def simulated(
    config: Config, facts: Facts, model: StepTime, due: Sequence[Arrival], slo: Slo, seed: int
) -> Tally:
    """The same arrivals, with admission as the stack has it."""
    asked = Simulation(
        config=config,
        facts=msgspec.structs.replace(facts, model=MODEL),
        seconds=model.seconds,
        ways=model.ways,
        ratios=model.ratios,
        slo=slo,
        seed=seed,
        replicas=config.stack.replicas,
        admission=True,
        known=Measured(config).of(facts),
        horizon=due[-1].at + DRAIN,
    )
    return simulate(asked, iter(due)).tally


def report(origin: dict[str, Any], told: dict[float, tuple[list[Any], ...]]) -> Report:
    each = {rate: compared(*both) for rate, both in told.items()}
    return Report(
        title="Simulated beside measured",
        provenance=origin,
        summary=[
            Figure(f"{one.name} at {rate:g}/s, off", [one.off], "share")
            for rate, all_ in each.items()
            for one in all_
        ],
        tables=[table(rate, all_) for rate, all_ in each.items()],
        definitions=DEFINITIONS,
        raw={
            "compared": {f"{rate:g}": [asdict(one) for one in all_] for rate, all_ in each.items()},
            "measured": {f"{rate:g}": both[0] for rate, both in told.items()},
            "simulated": {f"{rate:g}": both[1] for rate, both in told.items()},
        },
    )


def table(rate: float, all_: Sequence[Compared]) -> Table:
    repeats = range(len(all_[0].measured))
    runs = [f"{which} {repeat + 1}" for which in ("measured", "simulated") for repeat in repeats]
    return Table(
        f"{rate:g} requests/s",
        ["", *runs, "off", "within repeats"],
        [[one.name, *one.measured, *one.simulated, one.off, "yes" if one.inside else "no"] for one in all_],
        ["", *("s" for _ in runs), "share", ""],
        "Off: the simulated mean over the measured one, less 1. Within: it lies in what the measured span.",
    )
