"""An explanation as a report: the wait for each token by what it was for, and the steps of the longest."""

from collections.abc import Iterator, Sequence
from typing import Any

from pillion.ops.report import Areas, Axis, Bars, Figure, Lines, Mark, NoReport, Plot, Points, Report, Series
from pillion.ops.report import Table as Grid
from pillion.ops.report.model import Cell
from pillion.ops.report.origin import origin
from pillion.ops.report.words import quantity
from pillion.words import counted

Json = dict[str, Any]

BETWEEN = "between tokens"
_SEEN = 0.003  # of a plot's width
APART = ("preempted", "failed", "lost", "prefill anew")  # parts of a gap that follow one another
DEFINITIONS = {
    "preparation at the gateway": "From the request's arrival to its entry in `submit`.",
    "admission": "To its entry in `run:{replica}`: it waited for credit, its turn, a replica.",
    "way to the scheduler": "Until the scheduler had read it.",
    "queue at the scheduler": "To the first step with tokens of it.",
    "prefill": "To the result of the step with its last chunk.",
    "executor idle": "The executor had no plan.",
    "step": "The executor computed it. Without it: others had their turn, or no KV block was free for it.",
    "results on their way": "The rest at the replica: from the executor to the scheduler and its loop.",
    "preempted": "Its blocks were taken. Prefill anew: from its new slot to its next token.",
    "delivery": "From the result at the scheduler to the gateway's write: journal, Redis, network, gateway.",
    "gap": "Between two results with tokens of this choice at the scheduler; those of one come together.",
    "own tokens": "What the step computed for this request.",
}


def report(told: Json) -> Report:
    """Raises NoReport for a request of which nothing has run."""
    if not (told.get("ttft") or told.get("replica_spans") or told.get("prefill", {}).get("chunks")):
        why = told["why"] if told["status"] == "waiting" else told["queue"]["why"]
        raise NoReport(f"no report is written, as nothing of the request has run yet: {why}")
    return Report(
        title=f"Request {told['id']}: {told['status']} on replica {told['replica']}",
        provenance=origin(request=told["id"], replica=told["replica"]),
        summary=list(_figures(told)),
        tables=list(_tables(told)),
        plots=list(_plots(told)),
        notes=list(_notes(told)),
        definitions=DEFINITIONS,
        raw=told,
    )


def _figures(told: Json) -> Iterator[Figure]:
    ttft, gap = told["ttft"], told["worst_gap"]
    if ttft is not None:
        yield Figure("first token after", [ttft["seconds"]], "s", "lower")
        yield Figure("first step after", [ttft["scheduling_delay"]], "s", "lower")
    if gap is not None:
        yield Figure("longest gap", [gap["seconds"]], "s", "lower")
    yield Figure("prompt tokens", [told["prefill"]["prompt_tokens"]])
    yield Figure("of which cached", [told["prefill"]["cached_tokens"]])
    yield Figure("output tokens", [told["output_tokens"]])
    yield Figure("sequences ahead of it", [told["queue"]["ahead"]])
    yield Figure("running when it came", [told["queue"]["running"]])
    yield Figure("preemptions", [told["preemptions"]], "", "lower")
    yield Figure("tokens computed again", [told["recomputed_tokens"]], "", "lower")


def _notes(told: Json) -> Iterator[str]:
    gap, more = told["worst_gap"], told["prefill"]["more_chunks"]
    if gap is None:
        yield "There is no gap between tokens yet."
    else:
        place = f"Longest gap: {quantity(gap['seconds'], 's')} before token {gap['position']}"
        yield f"{place} of choice {gap['choice']}: {gap['why']}."
    if told["ttft"] is None:
        yield "Its first token is of an earlier life, or has not come: times begin with what is known."
    else:
        yield f"Queue: {told['queue']['why']}."
    if more:
        yield f"{more} chunks of its prompt are left out."


# --- tables ----------------------------------------------------------------------------------------


def _tables(told: Json) -> Iterator[Grid]:
    ttft, gap = told["ttft"], told["worst_gap"]
    if ttft is not None:
        yield _parts("Until the first token", ttft["parts"], ttft["seconds"])
    if gap is None:
        return
    yield _parts(f"The longest gap, before token {gap['position']}", gap["parts"], gap["seconds"])
    if gap["steps"]:
        left = f"{gap['more_steps']} shorter ones are left out." if gap["more_steps"] else ""
        yield Grid(
            "Steps in the longest gap",
            [
                *("step", "ended at", "took", "predicted", "idle before"),
                *("decodes", "chunks", "own tokens", "budget", "waiting"),
            ],
            [_step(step, gap["began"]) for step in gap["steps"]],
            ["", "s", "s", "s", "s", "", "", "", "", ""],
            f"In the order they ran; the time is from the gap's begin. {left}".rstrip(),
        )
    yield Grid(
        "The longest gaps at the replica",
        ["before token", "at", "long", "why"],
        [
            [str(each["position"]), each["began"] - _zero(told), each["seconds"], each["why"]]
            for each in told["replica_gaps"]
        ],
        ["", "s", "s", ""],
    )


def _parts(title: str, parts: Sequence[Json], whole: float) -> Grid:
    rows: list[list[Cell]] = [
        [part["what"], part["seconds"], part["seconds"] / whole if whole else None] for part in parts
    ]
    return Grid(title, ["", "time", "share"], [*rows, ["whole", whole, None]], ["", "s", "share"])


def _step(step: Json, began: float) -> list[Cell]:
    return [
        str(step["step"]), step["ended"] - began, step["seconds"], step["predicted_seconds"],
        step["idle_seconds"], step["decodes"], _chunks(step) or None, step["own_tokens"], step["budget"],
        step["waiting"],
    ]  # fmt: skip


def _chunks(step: Json) -> str:
    return " + ".join(map(str, step["chunk_tokens"]))


# --- plots -----------------------------------------------------------------------------------------


def _plots(told: Json) -> Iterator[Plot]:
    zero = _zero(told)
    since = "since it arrived" if told["ttft"] is not None else "since the first that is known"
    if told["ttft"] is not None or told["replica_spans"]:
        yield _waits(told, zero, Axis(f"time {since}", "s"))
    if told["replica_spans"]:
        yield _gaps(told, zero, Axis(since, "s"))
    if told["prefill"]["chunks"]:
        yield _prefill(told, zero, Axis(since, "s"))
    if told["worst_gap"] is not None and told["worst_gap"]["steps"]:
        yield _steps(told["worst_gap"])


def _zero(told: Json) -> float:
    """Its arrival; where its first token is not of this life, the first that is known."""
    if told["ttft"] is not None:
        return float(told["arrival"])
    known = [span["began"] for span in told["replica_spans"]]
    known += [step["ended"] - step["seconds"] for step in told["prefill"]["chunks"]]
    return float(min(known))


def _waits(told: Json, zero: float, at: Axis) -> Plot:
    """The height of a stretch is how long its token let wait. What is too short to be seen is left out."""
    every = sorted(_stretches(told, zero))
    end = every[-1][1]
    stretches = [each for each in every if each[1] - each[0] > _SEEN * end]
    names = list(dict.fromkeys(name for _, _, name, _ in stretches))
    rows = [(began, [long if each == name else 0.0 for each in names]) for began, _, name, long in stretches]
    return Areas(
        "How long each token let wait", at, Axis("wait", "s"), names, rows,
        note="The first one, and where its blocks were taken, by what it waited for.",
        end=end,
    )  # fmt: skip


def _stretches(told: Json, zero: float) -> Iterator[tuple[float, float, str, float]]:
    """From, to, what for, and how long the whole wait was."""
    at = 0.0
    if told["ttft"] is not None:
        for part in told["ttft"]["parts"]:
            if part["seconds"] > 0:
                yield at, at + part["seconds"], part["what"], told["ttft"]["seconds"]
                at += part["seconds"]
    apart = [gap for gap in told["replica_gaps"] if any(part["what"] in APART for part in gap["parts"])]
    apart.sort(key=lambda gap: gap["began"])
    for gap in apart:
        began = gap["began"] - zero
        for part in gap["parts"]:
            what = part["what"] if part["what"] in APART else BETWEEN
            yield began, began + part["seconds"], what, gap["seconds"]
            began += part["seconds"]
    for span in told["replica_spans"]:
        yield from _left(span, apart, zero, at)


def _left(
    span: Json, apart: Sequence[Json], zero: float, least: float
) -> Iterator[tuple[float, float, str, float]]:
    """What is left of a span between the gaps that are shown apart."""
    at, ended = max(span["began"] - zero, least), span["ended"] - zero
    within = [gap for gap in apart if span["began"] <= gap["began"] + gap["seconds"] / 2 < span["ended"]]
    gaps = span["gaps"] - len(within)
    if not gaps:
        return
    rest = span["ended"] - span["began"] - sum(gap["seconds"] for gap in within)
    long = rest / gaps if within else span["longest_seconds"]
    for began, end in [*((gap["began"] - zero, gap["seconds"]) for gap in within), (ended, 0.0)]:
        if began > at:
            yield at, began, BETWEEN, long
        at = max(at, began + end)


def _longest(told: Json, zero: float) -> list[Mark]:
    gap = told["worst_gap"]
    if gap is None:
        return []
    longest = max(gap["steps"], key=lambda step: step["seconds"], default=None)
    name = "longest gap" if longest is None else f"longest gap, step {longest['step']}"
    return [Mark("x", gap["began"] + gap["seconds"] - zero, name)]


def _gaps(told: Json, zero: float, at: Axis) -> Plot:
    spans = told["replica_spans"]
    most = max(span["gaps"] for span in spans)
    longest = [(span["ended"] - zero, span["longest_seconds"]) for span in spans]
    series = [Series("longest", longest)]
    if most > 1:
        mean = [(span["ended"] - zero, (span["ended"] - span["began"]) / span["gaps"]) for span in spans]
        series.append(Series("mean", mean))
    note = f"A point is {most} gaps." if most > 1 else "A point is one gap."
    return Lines("Gaps between tokens", at, Axis("gap", "s"), series, _longest(told, zero), note)


def _prefill(told: Json, zero: float, at: Axis) -> Plot:
    bars = [
        (step["ended"] - step["seconds"] - zero, step["ended"] - zero, float(step["own_tokens"]))
        for step in told["prefill"]["chunks"]
    ]
    return Bars(
        "Chunks of the prompt", at, Axis("tokens"), bars, note="As wide as the step took that computed it."
    )


def _steps(gap: Json) -> Plot:
    steps = gap["steps"]
    ended = [step["ended"] - gap["began"] for step in steps]
    took = [(at, step["seconds"]) for at, step in zip(ended, steps, strict=True)]
    predicted = [(at, step["predicted_seconds"]) for at, step in zip(ended, steps, strict=True)]
    longest = max(steps, key=lambda step: step["seconds"])
    labels = [f"step {step['step']}: {_carried(step)}" if step is longest else "" for step in steps]
    return Points(
        "Steps in the longest gap", Axis("time since the token before", "s"), Axis("step", "s"),
        [Series("took", took, labels), Series("predicted", predicted)],
        note="Beside the longest what it carried; the table has it of all, and their budgets.",
    )  # fmt: skip


def _carried(step: Json) -> str:
    decodes = counted(step["decodes"], "decode") if step["decodes"] else ""
    prompts = f"{_chunks(step)} prompt tokens" if step["chunk_tokens"] else ""
    return " and ".join(filter(None, (decodes, prompts)))
