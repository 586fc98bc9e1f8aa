"""From what `pillion simulate` is asked for to its report."""

import random
import resource
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from pillion.config import Config, leaves
from pillion.config.tree import DEFAULT_SLO_TBT
from pillion.ops.measure import Slo
from pillion.ops.report import tell, words, write
from pillion.ops.report.origin import origin
from pillion.ops.traces import (
    LENGTHS,
    Arrival,
    Closed,
    Rows,
    Shape,
    Source,
    arrivals,
    gamma,
    poisson,
    read,
    replayed,
    timed,
)
from pillion.steptime import StepTime, load

from .run import Result, Simulation, facts_of, simulate
from .told import report

LOAD = (
    *("cost_model", "trace", "lengths", "arrivals", "rate", "cv", "clients", "think", "scale", "requests"),
    *("seconds", "admission", "residuals", "learn", "stages", "stage_latency", "seed", "repeats", "output"),
)
"""What a simulation is asked for beside the settings."""

TTFT = 2.0  # seconds: the target where none is set
REQUESTS = 1000


class CannotSimulate(Exception):
    """What was asked for does not go together. One line that says what to change."""


class Load:
    """Where requests come from: the same for each repeat, but for the seed."""

    def __init__(self, asked: dict[str, Any]) -> None:
        """Raises CannotSimulate or BadTrace."""
        trace = read(asked["trace"]) if asked["trace"] else None
        if trace is not None and asked["lengths"]:
            raise CannotSimulate("give --trace or --lengths, not both")
        self._process = asked["arrivals"] or _process(asked)
        self._asked = asked
        self._trace = trace
        self._source: Source = Rows(trace) if trace is not None else _shape(asked["lengths"])
        if self._process is None and trace is None:
            raise CannotSimulate("say how requests arrive: give --rate, --clients or a --trace")
        if self._process is None and not timed(trace or ()):
            raise CannotSimulate(f"{asked['trace']} has no arrived_at: give --rate or --clients")
        if self._process in ("poisson", "gamma") and not asked["rate"]:
            raise CannotSimulate(f"--arrivals {self._process} needs --rate")
        if self._process == "closed" and not asked["clients"]:
            raise CannotSimulate("--arrivals closed needs --clients")
        for name, process in (
            ("rate", ("poisson", "gamma")),
            ("cv", ("gamma",)),
            ("clients", ("closed",)),
            ("think", ("closed",)),
            ("scale", (None,)),
        ):
            if asked[name] is not None and self._process not in process:
                of = {None: "a replayed trace", "closed": "closed arrivals (--clients)"}.get(
                    self._process, f"{self._process} arrivals"
                )
                raise CannotSimulate(f"--{name} means nothing to {of}; leave it out, or see --arrivals")

    @property
    def closed(self) -> Closed | None:
        return (
            Closed(self._asked["clients"], self._asked["think"] or 0.0) if self._process == "closed" else None
        )

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        asked, count = self._asked, self._asked["requests"]
        if self._process is None:
            return islice(replayed(self._trace or (), asked["scale"] or 1.0), count)
        random_ = random.Random(f"{seed} arrivals")
        times = (
            gamma(asked["rate"], asked["cv"] or 2.0)
            if self._process == "gamma"
            else poisson(asked["rate"] or 1.0)
        )
        return arrivals(random_, self._source, times, requests=count or REQUESTS)


def run(config: Config, **asked: Any) -> None:
    """Simulates, tells and writes.

    Raises CannotSimulate, BadTrace, CostModelError, ConfigError or NoReport.
    """
    model = load(Path(asked["cost_model"]))
    source = Load(asked)
    seeds = range(asked["seed"], asked["seed"] + asked["repeats"])
    simulations = [simulation(config, model, asked, seed) for seed in seeds]
    start = time.perf_counter()
    columns, console = (TextColumn("{task.description}"), TimeElapsedColumn()), Console(stderr=True)
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)

        def tick(sent: int, now: float) -> None:
            progress.update(task, description=f"{sent:,} requests, {now:,.0f} s")

        results = [simulate(one, source.arrivals(one.seed), source.closed, tick) for one in simulations]
    took = time.perf_counter() - start
    made = report(
        simulations[0], results, _provenance(config, model, asked, simulations[0].slo, took, results)
    )
    made = msgspec.structs.replace(made, notes=[*made.notes, *idle(config, asked["admission"])])
    tell(made, write(made, asked["output"]) if asked["output"] else ())


def idle(config: Config, admission: bool) -> Iterator[str]:
    """What was set for nothing, since no admission is simulated."""
    if config.stack.replicas > 1 or admission:
        return
    given = [
        leaf.flag
        for leaf in leaves()
        if leaf.section == "admission" and getattr(config.admission, leaf.name) != leaf.default
    ]
    if given:
        yield f"{', '.join(given)}: nothing is refused for it without --admission, where there is one replica"


def simulation(config: Config, model: StepTime, asked: dict[str, Any], seed: int) -> Simulation:
    return Simulation(
        config=config,
        facts=facts_of(config, model, asked["stages"]),
        seconds=model.seconds,
        ways=model.ways,
        ratios=model.ratios if asked["residuals"] else (),
        slo=Slo(config.admission.slo_ttft or TTFT, config.scheduler.step_target or DEFAULT_SLO_TBT),
        seed=seed,
        replicas=config.stack.replicas,
        admission=asked["admission"],
        known=None if asked["learn"] else model,
        horizon=asked["seconds"],
        hop=lambda rows: float(asked["stage_latency"]),
    )


def _process(asked: dict[str, Any]) -> str | None:
    if asked["clients"]:
        return "closed"
    if asked["rate"]:
        return "gamma" if asked["cv"] else "poisson"
    return None


def _shape(name: str | None) -> Shape:
    shape = LENGTHS.get(name or "openchat_sharegpt4")
    if shape is None:
        raise CannotSimulate(f"--lengths {name} is unknown; there is {', '.join(sorted(LENGTHS))}")
    return shape


def _provenance(
    config: Config, model: StepTime, asked: dict[str, Any], slo: Slo, took: float, results: list[Result]
) -> dict[str, Any]:
    measured = model.provenance
    simulated = sum(result.ended for result in results)
    made_by = {
        "cost model": f"{model.hash}: {measured.model} on {measured.hardware}, {measured.date}",
        "load": {name: asked[name] for name in LOAD if asked[name] not in (None, False) and name != "output"},
        "scheduler": {
            name: getattr(config.scheduler, name)
            for name in ("policy", "max_num_seqs", "max_num_batched_tokens", "slo_tbt")
        },
        "targets": f"TTFT {words.quantity(slo.ttft, 's')}, P99 TBT {words.quantity(slo.tbt, 's')}",
        "seconds simulated": round(simulated, 3),
        "seconds that took": round(took, 3),
        "most memory, MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }
    return origin(**made_by)
