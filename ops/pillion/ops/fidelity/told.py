"""The report: each figure as it was measured, as simulated before, and as simulated at the machine's pace."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pillion.ops.measure import DEFINITIONS
from pillion.ops.report import Figure, Report, Table

from .compared import Compared, compared
from .run import Run

OWN = {
    "off": "the mean of the simulated figures over that of the measured ones, less 1",
    "within repeats": "whether the simulated mean lies in what the measured repeats span",
    "pace": "seconds of a run's steps over what the cost model, frozen before, says of the same steps",
    "at its pace": "simulated again with every step's time multiplied by its run's pace: what is off there"
    " does not come from a machine that became quicker or slower",
}


def report(origin: dict[str, Any], runs: dict[float, list[Run]]) -> Report:
    each = {rate: beside(found) for rate, found in runs.items()}
    paced = {rate: beside(found, True) for rate, found in runs.items() if all(run.paced for run in found)}
    return Report(
        title="Simulated beside measured",
        provenance=origin,
        summary=[
            Figure(f"{one.name} at {rate:g}/s, off{extra}", [one.off], "share")
            for extra, those in (("", each), (" at its pace", paced))
            for rate, all_ in those.items()
            for one in all_
        ],
        tables=[table(f"{rate:g} requests/s", all_) for rate, all_ in each.items()]
        + [
            table(f"{rate:g} requests/s, at its pace", all_, _paces(runs[rate]))
            for rate, all_ in paced.items()
        ],
        definitions=DEFINITIONS | OWN,
        raw={
            "compared": {f"{rate:g}": [asdict(one) for one in all_] for rate, all_ in each.items()},
            "at its pace": {f"{rate:g}": [asdict(one) for one in all_] for rate, all_ in paced.items()},
            "runs": {f"{rate:g}": [asdict(run) for run in found] for rate, found in runs.items()},
        },
    )


def beside(runs: Sequence[Run], at_pace: bool = False) -> list[Compared]:
    simulated = [run.paced if at_pace else run.simulated for run in runs]
    return compared([run.measured for run in runs], [each for each in simulated if each is not None])


def table(title: str, all_: Sequence[Compared], note: str = "") -> Table:
    repeats = range(len(all_[0].measured))
    runs = [f"{which} {repeat + 1}" for which in ("measured", "simulated") for repeat in repeats]
    return Table(
        title,
        ["", *runs, "off", "within repeats"],
        [[one.name, *one.measured, *one.simulated, one.off, "yes" if one.inside else "no"] for one in all_],
        ["", *("s" for _ in runs), "share", ""],
        note,
    )


def _paces(runs: Sequence[Run]) -> str:
    return "Pace: " + ", ".join(f"{run.pace:.3f}" for run in runs if run.pace is not None) + "."
