"""A profile as a report: how near the cost model comes to what was measured, and what a step is made of."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np

from pillion.ops.profile import served
from pillion.ops.profile.run import Profile, Step
from pillion.ops.profile.serve import Fit
from pillion.ops.profile.shapes import SHORT, Chunk, Shape
from pillion.ops.report import Areas, Axis, Figure, Lines, Mark, Plot, Points, Report, Series, Table
from pillion.ops.report.model import Cell
from pillion.ops.report.origin import origin
from pillion.steptime import StepTime, Work

GOAL = (0.05, 0.12)  # median and P95 of the relative error
KINDS = ("decodes", "one prompt", "several prompts", "decodes and prompts")
DEFINITIONS = {
    "step": "One forward pass. It has been measured several times; its time is the median of them.",
    "error": "|predicted - measured| / measured of a step's time.",
    "held out": "Mixed steps that the fit has not seen. Fitted: those that it has.",
    "repeats' spread": "(P90 - P10) / median of one step's times, the median of all: the machine's own.",
    "tile": "Rows at whose multiples products are efficient: one row more costs another tile's time.",
    "gap": "The executor's idle time between two steps when the next plan is there; median.",
    "way": "From sending a plan to an idle executor to its result, less the step's own time; median.",
    "serving": "Steps of a stack under closed loops of clients, on the cores that all its processes share.",
}
_TILES = 8  # that the plot of the tiles' steps shows
_MOST = 400  # points of a scatter
_STEP, _PREDICTED, _MEASURED = (
    Axis("rows of the step"),
    Axis("predicted", "s", "log"),
    Axis("measured", "s", "log"),
)


def report(profile: Profile, fit: Fit | None) -> Report:
    """`fit`: where a stack served too; its model is then the one that is kept."""
    model = profile.model if fit is None else fit.model
    return Report(
        title=f"How long steps of {model.provenance.model} take",
        provenance=_provenance(profile, model),
        summary=list(_figures(profile, fit)),
        tables=[_kinds(profile), _made_of(profile, model)],
        plots=[
            _against(profile),
            _residuals(profile),
            _tiles(profile),
            _terms(profile, model),
            *([] if fit is None else _serving(profile.model, fit)),
        ],
        notes=list(_notes(profile)),
        definitions=DEFINITIONS,
        raw={"cost_model": model.hash, "samples": list(profile.samples())},
    )


def terms(model: StepTime, work: Work) -> dict[str, float]:
    """What the model's seconds are a sum of."""
    return {
        "each step": model.base,
        "rows": model.rows(work.rows),
        "tiles": model.tile_seconds * -(-work.rows // model.tile),
        "head": model.sampled(work.sampled),
        "attention of chunks": model.pair * work.pairs,
        "attention of decodes": model.context * work.context,
        "each decode": model.decode * work.decodes,
        "each chunk": model.chunk * work.chunks,
    }


def kind(work: Work) -> str:
    """One of KINDS."""
    if not work.chunks:
        return "decodes"
    if work.decodes:
        return "decodes and prompts"
    return "one prompt" if work.chunks == 1 else "several prompts"


def _provenance(profile: Profile, model: StepTime) -> dict[str, Any]:
    made = model.provenance
    repeats = sum(len(step.seconds) for step in profile.steps)
    return origin(
        model=made.model,
        fingerprint=made.fingerprint,
        hardware=made.hardware,
        threads=made.threads,
        dtype=made.dtype,
        backend=made.backend,
        **{"cost model": model.hash},
        seed=made.seed,
        measured=f"{repeats} steps of {len(profile.steps)} shapes in {profile.rounds} rounds",
        **{"KV positions read": profile.positions},
    )


def _figures(profile: Profile, fit: Fit | None) -> Iterator[Figure]:
    model, error = profile.model, profile.model.error
    fitted = [_off(model, step) for step in profile.steps if not step.held]
    yield Figure("error held out, median", [error.median], "share", "lower")
    yield Figure("error held out, P95", [error.p95], "share", "lower")
    if fitted:
        yield Figure("error fitted, median", [median(fitted)], "share", "lower")
    yield Figure("repeats' spread", [error.spread], "share", "lower")
    yield Figure("gap between steps", [model.ways.gap], "s", "lower")
    yield Figure("way to the executor and back", [model.ways.turn], "s", "lower")
    if fit is not None:
        yield Figure("steps while serving", [float(len(fit.steps))])
        yield Figure("serving over alone", [fit.before], "times", "lower")
        yield Figure("serving over predicted", [fit.after], "times")


def _notes(profile: Profile) -> Iterator[str]:
    error = profile.model.error
    if error.median > GOAL[0] or error.p95 > GOAL[1]:
        yield "the error is large: was the machine free? `pillion profile` again, with more --seconds"


def _off(model: StepTime, step: Step) -> float:
    measured = median(step.seconds)
    return abs(model.seconds(step.shape.work) - measured) / measured


# --- measured and predicted ------------------------------------------------------------------------


def _kinds(profile: Profile) -> Table:
    rows: list[list[Cell]] = []
    for name in KINDS:
        for held in (False, True):
            steps = [s for s in profile.steps if kind(s.shape.work) == name and s.held is held]
            if steps:
                errors = [_off(profile.model, step) for step in steps]
                rows.append(
                    [
                        f"{name}, {_which(held)}", len(steps), median(median(step.seconds) for step in steps),
                        median(errors), float(np.quantile(errors, 0.95)), max(errors),
                        median(_ratio(profile.model, step) for step in steps),
                    ]
                )  # fmt: skip
    return Table(
        "Error by kind of step",
        ["", "shapes", "step P50", "error P50", "error P95", "error, worst", "measured / predicted P50"],
        rows,
        ["", "", "s", "share", "share", "share", ""],
    )


def _against(profile: Profile) -> Plot:
    model = profile.model
    series = [
        Series(
            _which(held),
            [(model.seconds(s.shape.work), median(s.seconds)) for s in profile.steps if s.held is held],
        )
        for held in (False, True)
    ]
    return Points(
        "Measured against predicted step time", _PREDICTED, _MEASURED, series,
        marks=[Mark("xy", 1.0, "equal")], note="A point is one shape, the median of its repeats.",
    )  # fmt: skip


def _residuals(profile: Profile) -> Plot:
    model = profile.model
    series = [
        Series(
            name,
            [
                (model.seconds(step.shape.work), _ratio(model, step))
                for step in profile.steps
                if kind(step.shape.work) == name
            ],
        )
        for name in KINDS
    ]
    return Points(
        "What the model leaves, by kind of step", _PREDICTED, Axis("measured / predicted", "", "log"),
        [each for each in series if each.points], marks=[Mark("y", 1.0, "as predicted")],
    )  # fmt: skip


def _which(held: bool) -> str:
    return "held out" if held else "fitted"


def _ratio(model: StepTime, step: Step) -> float:
    return median(step.seconds) / model.seconds(step.shape.work)


# --- what a step is made of ------------------------------------------------------------------------


def _tiles(profile: Profile) -> Plot:
    """Short prompts and short decodes, whose time is their rows'."""
    model = profile.model
    most = min(_TILES * model.tile, max(step.shape.work.rows for step in profile.steps))
    plain = {"one prompt": _prompt, "decodes": _decodes}
    series = []
    for name, shape in plain.items():
        sizes = range(1, most + 1)
        series.append(Series(f"{name}, predicted", [(float(n), model.seconds(shape(n).work)) for n in sizes]))
        wanted = {shape(n): n for n in sizes}
        seen = sorted(
            (float(wanted[step.shape]), median(step.seconds))
            for step in profile.steps
            if step.shape in wanted
        )
        series.append(Series(f"{name}, measured", seen))
    return Lines(
        f"Time over rows: tiles of {model.tile}", _STEP, Axis("step", "s"), series,
        note=f"Prompts from their first token on; decodes behind {SHORT} positions each.",
    )  # fmt: skip


def _prompt(rows: int) -> Shape:
    return Shape(chunks=(Chunk(0, rows),))


def _decodes(rows: int) -> Shape:
    return Shape(contexts=(SHORT,) * rows)


def _terms(profile: Profile, model: StepTime) -> Plot:
    most = max(step.shape.work.rows for step in profile.steps)
    sizes = range(model.tile, max(most, model.tile) + 1, model.tile)
    each = [(float(rows), terms(model, _prompt(rows).work)) for rows in sizes]
    names = [name for name in each[-1][1] if any(parts[name] for _, parts in each)]
    return Areas(
        "What the time of a prompt's step is made of", _STEP, Axis("step", "s"), names,
        [(rows, [parts[name] for name in names]) for rows, parts in each],
    )  # fmt: skip


def _made_of(profile: Profile, model: StepTime) -> Table:
    works = [step.shape.work for step in profile.steps]
    decodes, rows = max(work.decodes for work in works), max(work.rows for work in works)
    contexts, half = (512,) * max(decodes // 2, 1), (Chunk(0, max(rows // 2, 1)),)
    shapes = {
        "one decode at 512 positions": Shape(contexts=(512,)),
        f"{len(contexts)} decodes at 512 positions": Shape(contexts=contexts),
        f"a prompt's {half[0].count} tokens": Shape(chunks=half),
        f"{len(contexts)} such decodes beside {half[0].count} such tokens": Shape(contexts, half),
    }
    parts = {name: terms(model, shape.work) for name, shape in shapes.items()}
    names = [name for name in next(iter(parts.values())) if any(each[name] for each in parts.values())]
    table: list[list[Cell]] = []
    for name, each in parts.items():
        total = sum(each.values())
        table.append([name, total, *(each[term] / total if total else None for term in names)])
    return Table(
        "What the time of a step is made of",
        ["", "predicted", *names],
        table,
        ["", "s", *("share" for _ in names)],
    )


# --- while serving ---------------------------------------------------------------------------------


def _serving(alone: StepTime, fit: Fit) -> list[Plot]:
    every = fit.steps[:: max(-(-len(fit.steps) // _MOST), 1)]
    by_kind = [
        Series(name, [(fit.model.seconds(s.work), s.seconds) for s in every if kind(s.work) == name])
        for name in KINDS
    ]
    note = f"{len(every)} of {len(fit.steps)} steps, spread over the whole time."
    return [
        Points(
            "Measured against predicted while serving", _PREDICTED, _MEASURED,
            [series for series in by_kind if series.points], marks=[Mark("xy", 1.0, "equal")], note=note,
        ),
        Lines(
            "Alone and while serving", Axis("measured / predicted"), Axis("share of steps", "share"),
            [
                Series("alone", _shares(alone.ratios)),
                Series("serving, by the model of alone", _quantiles(alone, fit.steps)),
                Series("serving, by its own model", _quantiles(fit.model, fit.steps)),
            ],
            marks=[Mark("x", 1.0, "as predicted")], note="Cumulative, from 1 to 99 % of single steps.",
        ),
    ]  # fmt: skip


def _quantiles(model: StepTime, steps: Sequence[served.Step]) -> list[tuple[float, float]]:
    ratios = [step.seconds / model.seconds(step.work) for step in steps]
    return _shares([float(value) for value in np.quantile(ratios, np.linspace(0, 1, 101))])


def _shares(quantiles: Sequence[float]) -> list[tuple[float, float]]:
    """Without the ends, which one step makes. `quantiles`: 0 %, 1 %, ..., 100 %."""
    return [(value, percent / 100) for percent, value in enumerate(quantiles) if 0 < percent < 100]
