"""A replay as a report: what steps carried, were allowed and took, queue and blocks, and the verdict."""

from collections.abc import Iterator
from typing import Any

from pillion.ops.replay.watching import KINDS, Part, Watch
from pillion.ops.report import Areas, Axis, Figure, Lines, Mark, Plot, Points, Report, Series, Table
from pillion.ops.report.model import Cell
from pillion.ops.report.origin import origin
from pillion.scheduler.recorded import GOES_ON
from pillion.version import VERSION

DEFINITIONS = {
    "step": "One forward pass. Those of a plan of several count each; its times are divided among them.",
    "decodes, prompts": "Tokens that a step computes for sequences that decode, and of prompts.",
    "budget": "The most tokens that the scheduler allowed the step.",
    "predicted": "By the scheduler when it sent the step, with what its cost model had learned until then.",
    "waiting": "Sequences without a slot. Running: with one.",
    "in use": "KV blocks that sequences hold, over all. Cached: those that none holds and a prefix may find.",
    "replayed": "The recorded events, put to the same core again: its plans are compared with the recorded.",
}
SAME = "every plan is the same"
_AT = Axis("time since the recording began", "s")


def report(watch: Watch) -> Report:
    """`watch`: has heard at least one part."""
    windows = watch.told()
    last = watch.parts[-1]
    name = last.name if len(watch.parts) == 1 else f"{len(watch.parts)} parts"
    return Report(
        title=f"Replay of {name}: {verdict(last)}",
        provenance=_provenance(watch),
        summary=list(_figures(watch)),
        tables=[_parts(watch), *_difference(last)],
        plots=_plots(watch, windows),
        notes=list(_notes(last)),
        definitions=DEFINITIONS,
        raw={"windows": windows},
    )


def verdict(part: Part) -> str:
    """On a part, in a few words."""
    if part.seen.difference is not None:
        return f"a plan differs behind event {part.seen.difference.entry}"
    return SAME if part.seen.seam is not False else "it begins with another state than the part before ended"


def _provenance(watch: Watch) -> dict[str, Any]:
    first = watch.parts[0].header
    settings = {
        name: getattr(first.settings, name)
        for name in ("policy", "slo_tbt", "max_num_batched_tokens", "max_num_seqs", "multi_step_seconds")
    }
    return origin(**{"recorded by": f"pillion {first.version}", "replica": first.replica}, settings=settings)


def _figures(watch: Watch) -> Iterator[Figure]:
    def total(name: str) -> float:
        return float(sum(getattr(part.seen, name) for part in watch.parts))

    sums = {name: sum(window[name] for window in watch.windows.told()) for name in watch.windows.names}
    for name, key in (("requests", "requests"), ("sequences", "sequences"), ("plans", "plans")):
        yield Figure(name, [total(key)])
    if sums["steps"]:
        yield Figure("tokens a step, decodes", [sums["decodes"] / sums["steps"]])
        yield Figure("tokens a step, prompts", [sums["prompts"] / sums["steps"]])
        yield Figure("budget used", [(sums["decodes"] + sums["prompts"]) / sums["budget"]], "share")
        yield Figure("step, mean", [sums["seconds"] / sums["steps"]], "s", "lower")
        yield Figure("step, longest", [watch.longest], "s", "lower")
        yield Figure(
            "took over predicted", [sums["seconds"] / sums["predicted"]] if sums["predicted"] else []
        )
    if sums["covered"]:
        yield Figure("blocks in use, mean", [sums["in_use"] / sums["covered"]], "share")
    yield Figure("most waiting", [float(watch.most_waiting)])
    yield Figure("preemptions", [total("preemptions")], "", "lower")
    yield Figure("tokens computed again", [total("recomputed")], "", "lower")
    if queried := total("queried"):
        yield Figure("prefix hits", [total("hits") / queried], "share", "higher")
    yield Figure("steps failed", [total("failed")], "", "lower")
    yield Figure("executors lost", [total("lost")], "", "lower")


def _notes(last: Part) -> Iterator[str]:
    seen = last.seen
    if seen.difference is not None or seen.seam is False:
        yield f"{last.name}: {verdict(last)}; what comes behind was not replayed."
        if seen.version != VERSION:
            yield f"It was recorded by release {seen.version}, this one is {VERSION}."
    elif not seen.end or seen.end == GOES_ON:
        yield f"{last.name} ends: {seen.end or 'it was cut off'}."


def _parts(watch: Watch) -> Table:
    rows: list[list[Cell]] = [
        [
            part.name,
            part.header.replica,
            part.seen.entries,
            part.seen.seconds,
            part.seen.requests,
            part.seen.plans,
            part.seen.end or "it was cut off",
            verdict(part),
        ]
        for part in watch.parts
    ]
    columns = ["", "replica", "events", "time", "requests", "plans", "ends", "replayed"]
    return Table("Parts", columns, rows, ["", "", "", "s", "", "", "", ""])


def _difference(last: Part) -> Iterator[Table]:
    difference = last.seen.difference
    if difference is not None:
        rows = [[what.strip().partition(": ")[0], what.partition(": ")[2]] for what in difference.what]
        note = f"Behind {difference.entry} events, at {difference.event}; times are the scheduler's clock."
        yield Table("The first difference", ["", ""], [list(row) for row in rows], note=note)


# --- plots -----------------------------------------------------------------------------------------


def _plots(watch: Watch, windows: list[dict[str, Any]]) -> list[Plot]:
    marks = [Mark("x", at, what) for at, what in watch.marks]
    if watch.parts[-1].seen.difference is not None:
        marks.append(Mark("x", watch.at, "the first difference"))

    def line(name: str, *keys: str) -> Series:
        known = [one for one in windows if one[keys[0]] is not None]
        return Series(name, [(one["at"], sum(one[key] for key in keys)) for one in known])

    def areas(title: str, y: Axis, names: list[str], keys: tuple[str, ...]) -> Areas:
        rows = [(one["at"], [one[key] or 0.0 for key in keys]) for one in windows]
        return Areas(title, _AT, y, names, rows, marks, end=watch.at)

    tokens, keys = Axis("tokens, mean of a step"), ("decodes", "prompts")
    used = [line("budget", "budget"), line("used", *keys)]
    times = [line("predicted", "predicted"), line("took", "seconds")]
    queue = [line("waiting", "waiting"), line("running", "running")]
    return [
        areas("What a step carries", tokens, list(keys), keys),
        Lines("Budget and its use", _AT, tokens, used, marks),
        Lines("Step time", _AT, Axis("step, mean", "s"), times, marks),
        _against(watch),
        Lines("Queue", _AT, Axis("sequences, mean"), queue, marks),
        areas("KV blocks", Axis("share", "share"), ["in use", "cached"], ("in_use", "cached")),
    ]


def _against(watch: Watch) -> Plot:
    series = [
        Series(name, [(predicted, took) for kind, predicted, took in watch.steps if kind == name])
        for name in KINDS
    ]
    return Points(
        "Took against predicted", Axis("predicted", "s", "log"), Axis("took", "s", "log"),
        [each for each in series if each.points], marks=[Mark("xy", 1.0, "equal")],
        note="" if watch.every == 1 else f"One of {watch.every} steps, spread over the whole time.",
    )  # fmt: skip
