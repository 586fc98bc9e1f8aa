"""Simulates classes of traffic against settings, and tells which to use."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

import msgspec

from pillion.config import Config
from pillion.ops.measure import DEFINITIONS, Slo
from pillion.ops.report import Axis, Figure, Mark, Points, Report, Series, Table
from pillion.ops.report.origin import origin
from pillion.ops.simulate.run import Simulation, facts_of, simulate
from pillion.ops.traces import LENGTHS, Closed, arrivals, poisson
from pillion.steptime import StepTime

from .search import SEQUENCES, Setting, Tried, best, budgets, common, explore

CLASSES = ("chats", "summaries", "azure_code")
WAITING = 1.25  # clients for each sequence that may run: some always wait, so that steps are full


class NoSetting(Exception):
    """No setting keeps the target. One line that says what to do."""


@dataclass(frozen=True, slots=True)
class Asked:
    classes: tuple[str, ...]  # names of LENGTHS
    tbt: float  # target of P99 TBT, seconds
    requests: int  # of each simulation
    seed: int
    most_tokens: int  # of a step
    most_sequences: int
    stages: int = 1  # of the pipeline
    stage_latency: float = 0.0  # seconds from one to the next


@dataclass(frozen=True, slots=True)
class Tuned:
    """`together`: the setting that might serve all, tried under each class; none where there is one class."""

    best: dict[str, Tried]
    tried: dict[str, list[Tried]]
    together: dict[str, Tried]

    @property
    def one_for_all(self) -> Setting | None:
        first, *_ = [*self.together.values(), *self.best.values()]
        return first.setting if all(one.kept for one in self.together.values()) else None


def tune(config: Config, model: StepTime, asked: Asked, tell: Callable[[str], None]) -> Tuned:
    """Raises NoSetting."""
    sizes = budgets(model.tile, asked.most_tokens)
    numbers = [number for number in SEQUENCES if number <= asked.most_sequences]
    found: dict[str, Tried] = {}
    tried: dict[str, list[Tried]] = {}
    for name in asked.classes:

        def attempt(setting: Setting, name: str = name) -> Tried:
            tell(f"{name}: {setting.budget} tokens, {setting.sequences} sequences")
            return attempted(config, model, asked, name, setting)

        tried[name] = explore(attempt, sizes, numbers)
        chosen = best(tried[name])
        if chosen is None:
            least = min(tried[name], key=lambda one: one.tbt)
            raise NoSetting(
                f"no setting keeps {asked.tbt:g} s for {name}: the least P99 TBT was {least.tbt:.3g} s; "
                "give a higher --slo-tbt"
            )
        found[name] = chosen
    both = common(list(found.values()))
    several = len(asked.classes) > 1
    together = {name: attempted(config, model, asked, name, both) for name in asked.classes if several}
    return Tuned(found, tried, together)


def attempted(config: Config, model: StepTime, asked: Asked, name: str, setting: Setting) -> Tried:
    """One closed loop that keeps the setting full."""
    scheduler = msgspec.structs.replace(
        config.scheduler,
        max_num_batched_tokens=setting.budget,
        max_num_seqs=setting.sequences,
        slo_tbt=None,
        cost_model="none",
    )
    chosen = msgspec.structs.replace(config, scheduler=scheduler)
    simulation = Simulation(
        config=chosen,
        facts=facts_of(chosen, model, asked.stages),
        seconds=model.seconds,
        ways=model.ways,
        ratios=model.ratios,
        slo=Slo(float("inf"), asked.tbt),
        seed=asked.seed,
        known=model,
        hop=lambda rows: asked.stage_latency,
    )
    random_ = random.Random(f"{asked.seed} {name}")
    drawn = arrivals(random_, LENGTHS[name], poisson(1.0))
    clients = Closed(max(round(WAITING * setting.sequences), 2), 0.0)
    result = simulate(simulation, islice(drawn, asked.requests), clients)
    told = result.tally.summary(result.ended)
    tbt = told["tbt_s"]["p99"] if told["tbt_s"] else 0.0
    return Tried(
        setting,
        tbt,
        told["ttft_s"]["median"],
        (told["prompt_tokens"] + told["output_tokens"]) / result.ended,
        tbt <= asked.tbt,
    )


# --- the report --------------------------------------------------------------------------------------


def report(model: StepTime, asked: Asked, tuned: Tuned) -> Report:
    made_by = model.provenance
    return Report(
        title="Settings for a latency target",
        provenance=origin(
            **{
                "cost model": f"{model.hash}: {made_by.model} on {made_by.hardware}, {made_by.date}",
                "target": f"P99 TBT {asked.tbt * 1000:g} ms",
                "requests a simulation": asked.requests,
                "pipeline stages": asked.stages,
            },
            seed=asked.seed,
        ),
        summary=[
            figure
            for name, one in tuned.best.items()
            for figure in (
                Figure(f"{name}: tokens a step", [one.setting.budget], "", ""),
                Figure(f"{name}: sequences", [one.setting.sequences], "", ""),
                Figure(f"{name}: TBT P99", [one.tbt], "s", "lower"),
                Figure(f"{name}: tokens/s", [one.rate], "", "higher"),
            )
        ],
        tables=[
            *([_table("One setting for all", tuned.together.items())] if tuned.together else []),
            *(_table(name, [("", one) for one in tried]) for name, tried in tuned.tried.items()),
        ],
        plots=[
            Points(
                "What settings give",
                Axis("TBT P99", "s"),
                Axis("tokens/s"),
                [Series(name, [(one.tbt, one.rate) for one in tried]) for name, tried in tuned.tried.items()],
                best=("low", "high"),
                marks=[Mark("x", asked.tbt, "target")],
            )
        ],
        notes=[verdict(tuned)],
        definitions={name: DEFINITIONS[name] for name in ("TBT", "TTFT", "quantiles")}
        | {
            "full": f"Closed loops of {WAITING:g} clients a sequence: some always wait, so each step is full."
        },
    )


def flags(setting: Setting) -> str:
    return f"--max-num-batched-tokens {setting.budget} --max-num-seqs {setting.sequences}"


def verdict(tuned: Tuned) -> str:
    one = tuned.one_for_all
    if one is not None:
        return f"for all: {flags(one)}"
    each = "; ".join(f"{name}: {flags(found.setting)}" for name, found in tuned.best.items())
    return f"no one setting serves all. {each}"


def _table(title: str, rows: Iterable[tuple[str, Tried]]) -> Table:
    return Table(
        title,
        ["", "tokens a step", "sequences", "TBT P99", "TTFT P50", "tokens/s", "target"],
        [
            [
                name, one.setting.budget, one.setting.sequences, one.tbt, one.ttft, one.rate,
                "kept" if one.kept else "missed",
            ]
            for name, one in rows
        ],
        ["", "", "", "s", "s", "", ""],
    )  # fmt: skip
