"""A simulation's results as a report."""

from collections.abc import Sequence
from typing import Any

from pillion.ops.measure import DEFINITIONS, Histogram
from pillion.ops.report import Areas, Axis, Bars, Figure, Lines, Mark, Plot, Report, Series, Table

from .bubbles import DEFINITIONS as OF_STAGES
from .run import Result, Simulation
from .stages import KINDS
from .watch import Watch

_LATENCIES = ("ttft_s", "tbt_s", "tpot_s", "e2e_s", "delay_s")
_NAMES = ("TTFT", "TBT", "TPOT", "E2E", "scheduling delay")
_AT = Axis("time", "s")
_PIPELINE = (
    ("stage time idle", "idle_share", "share"),
    ("stage time in bubbles", "bubble_share", "share"),
    *((f"bubbles {kind}", f"{kind.lower()}_s", "s") for kind in KINDS),
)


def report(asked: Simulation, results: Sequence[Result], provenance: dict[str, Any]) -> Report:
    """`results`: one of each repeat, the first of which the plots show. Raises IndexError for none."""
    summaries = [result.summary() for result in results]
    first = results[0]
    where = "one replica" if asked.replicas == 1 else f"{asked.replicas} replicas"
    where += f" of {asked.facts.pp} stages" if asked.facts.pp > 1 else ""
    return Report(
        title=f"Simulated: {asked.config.scheduler.policy} on {where}",
        provenance=provenance,
        summary=list(_figures(summaries)),
        tables=[_latencies(summaries[0]), _steps(summaries[0]), *_pipeline(summaries[0])],
        plots=[
            _distribution("Time between tokens", "TBT", first.tally.tbt, asked.slo.tbt),
            _distribution("Time to first token", "TTFT", first.tally.ttft, asked.slo.ttft),
            *steps(first.watch),
        ],
        definitions=DEFINITIONS if first.bubbles is None else DEFINITIONS | OF_STAGES,
        raw={"repeats": summaries, "windows": first.watch.told()},
    )


def _figures(summaries: Sequence[dict[str, Any]]) -> list[Figure]:
    requests = [one["requests"] for one in summaries]
    steps = [one["steps"] for one in summaries]
    counters = [one["counters"] for one in summaries]
    pipelines = [one["pipeline"] for one in summaries if "pipeline" in one]

    def of(name: str, key: str, told: Sequence[dict[str, Any]], unit: str = "", better: Any = "") -> Figure:
        return Figure(name, [one[key] for one in told if one[key] is not None], unit, better)

    return [
        of("sent", "sent", requests),
        of("finished", "finished", requests),
        of("rejected", "rejected", requests),
        of("unfinished", "unfinished", requests),
        of("offered", "offered_per_s", requests, "requests/s"),
        of("goodput", "goodput_per_s", requests, "requests/s", "higher"),
        of("met both targets", "good_share", requests, "share", "higher"),
        of("met TTFT", "met_ttft_share", requests, "share", "higher"),
        of("met TBT", "met_tbt_share", requests, "share", "higher"),
        *(
            Figure(
                f"{name} {quantile}",
                [one[key][quantile] for one in requests if one[key] is not None],
                "s",
                "lower",
            )
            for key, name in zip(_LATENCIES, _NAMES, strict=True)
            for quantile in ("median", "p99")
        ),
        of("steps", "steps", steps),
        of("tokens a step, decodes", "decodes_a_step", steps),
        of("tokens a step, prompts", "prefill_a_step", steps),
        of("budget used", "budget_used", steps, "share"),
        of("most waiting", "most_waiting", steps),
        of("preemptions", "preemptions", counters, "", "lower"),
        of("prefix hits", "hit_share", counters, "share", "higher"),
        *(of(name, key, pipelines, unit, "lower") for name, key, unit in _PIPELINE if pipelines),
        *(
            Figure(
                f"bubbles of a request {quantile}",
                [one["request_s"][quantile] for one in pipelines if one["request_s"] is not None],
                "s",
                "lower",
            )
            for quantile in ("median", "p99")
            if pipelines
        ),
    ]


def _latencies(summary: dict[str, Any]) -> Table:
    quantiles = ("median", "p90", "p99", "p999", "worst", "mean")
    requests = summary["requests"]
    rows = [
        [name, *((requests[key] or {}).get(quantile) for quantile in quantiles)]
        for key, name in zip(_LATENCIES, _NAMES, strict=True)
    ]
    return Table("Latency", ["", *quantiles], rows, ["", *["s"] * len(quantiles)])


def _steps(summary: dict[str, Any]) -> Table:
    steps, counters = summary["steps"], summary["counters"]
    names = {
        "steps": "steps",
        "busy_s": "seconds that steps took in all",
        "step_s": "seconds of one step, mean",
        "decode_tokens": "tokens of decodes",
        "prefill_tokens": "tokens of prompts",
        "waiting": "waiting at a replica, mean",
        "most_waiting": "waiting at a replica, most",
        "running": "running at a replica, mean",
        "most_running": "running at a replica, most",
        "held": "held by admission, mean",
        "most_held": "held by admission, most",
        "kv_in_use": "share of the KV blocks in use, mean",
    }
    more = {
        "preemptions": "preemptions",
        "recomputed_tokens": "tokens computed again",
        "queried_tokens": "prompt tokens looked up",
        "hit_tokens": "prompt tokens found in the prefix cache",
    }
    rows = [[words, steps[name]] for name, words in names.items()]
    rows += [[words, counters[name]] for name, words in more.items()]
    return Table("Steps, queues, blocks", ["", "value"], rows)


def _pipeline(summary: dict[str, Any]) -> list[Table]:
    if "pipeline" not in summary:
        return []
    seen = summary["pipeline"]
    rows = [["stages", seen["stages"]], ["stage time, s", seen["stage_s"]]]
    rows += [[f"{name}, {unit}", seen[key]] for name, key, unit in _PIPELINE]
    if seen["request_s"] is not None:
        rows += [[f"bubbles of a request, {name}, s", seen["request_s"][name]] for name in seen["request_s"]]
    return [Table("Pipeline stages", ["", "value"], rows)]


def _distribution(title: str, name: str, times: Histogram, target: float) -> Lines:
    return Lines(
        title,
        Axis(name, "s", "log"),
        Axis("share that took no longer", "share", "tail"),
        [Series(name, times.curve())],
        [Mark("x", target, "target")],
    )


def steps(watch: Watch) -> list[Plot]:
    """What steps carried over time and by their chunks, and the queues and blocks meanwhile."""
    windows = watch.told()

    def line(name: str, key: str) -> Series:
        return Series(name, [(one["at"], one[key]) for one in windows])

    return [
        Areas(
            "What a step carries",
            _AT,
            Axis("tokens, mean of a step"),
            ["decodes", "prompts"],
            [(one["at"], [one["decodes_a_step"], one["prefill_a_step"]]) for one in windows],
        ),
        Lines("Budget used", _AT, Axis("share", "share"), [line("budget used", "budget_used")]),
        Lines(
            "Queues",
            _AT,
            Axis("sequences, mean"),
            [line("waiting", "waiting"), line("running", "running"), line("held by admission", "held")],
        ),
        Lines("KV blocks in use", _AT, Axis("share", "share"), [line("in use", "kv_in_use")]),
        _chunks(watch),
    ]


def _chunks(watch: Watch) -> Bars:
    bars = [
        (float(size - watch.tile), float(size), float(count)) for size, count in sorted(watch.chunks.items())
    ]
    return Bars("Chunks by their size", Axis("tokens"), Axis("chunks"), bars)
