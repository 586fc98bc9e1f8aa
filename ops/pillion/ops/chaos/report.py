"""What a run found, from its raw record: what each blow cost and of what that consists. Pure."""

import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import Any

from pillion.ops.chaos.schedule import Blow
from pillion.ops.chaos.stack import Line
from pillion.ops.chaos.streams import Stream

ON_ITS_WAY = 0.5  # seconds after a blow in which tokens of before it may still come

PHASES: dict[str, tuple[tuple[str, str, str], ...]] = {
    "executor": (
        ("noticed and started again", "up", r"starting executor again"),
        ("process start and imports", "executor", r"looking for the model|listens on"),
        ("model load", "executor", r"^ready;| ready;"),
        ("attach", "scheduler", r"executor attached"),
    ),
    "scheduler": (
        ("noticed and started again", "up", r"starting scheduler again"),
        ("process start and imports", "scheduler", r"asks for the lease"),
        ("lease wait", "scheduler", r"lease held"),
        ("attach", "scheduler", r"executor attached"),
    ),
    "admission": (
        ("noticed and started again", "up", r"starting admission again"),
        ("process start and lease wait", "admission", r"admission is active"),
    ),
    "gateway": (
        ("noticed and started again", "up", r"starting gateway again"),
        ("process start and imports", "gateway", r"listens on http"),
    ),
    "valkey": (
        ("noticed and started again", "up", r"starting valkey again"),
        ("process start, log read, reconnect", "scheduler", r"Redis is back"),
    ),
}
"""What a line of the log ends, by role: the phase's name, who says it, and the line. The rest of a pause
is prefill again (and the steps until then)."""


@dataclass(slots=True)
class Struck:
    """One blow and what it hit. Times are seconds of `time.monotonic`."""

    blow: Blow
    pid: int
    at: float
    died: bool = False  # for `stop`: it was seen stopped
    code: int | None = None  # the exit code, of `term` only
    back: float | None = None  # when the role had a new process, the stack was ready, and tokens came
    new_pid: int | None = None
    prefilling: int = 0  # sequences at the scheduler just before
    decoding: int = 0
    waiting: int = 0


@dataclass(slots=True)
class Record:
    """All that a run has seen."""

    settings: dict[str, Any]
    began: float
    streams: list[Stream] = field(default_factory=list)
    struck: list[Struck] = field(default_factory=list)
    differences: list[dict[str, Any]] = field(default_factory=list)
    lost: int = 0
    doubled: int = 0
    faults: list[str] = field(default_factory=list)  # what else went wrong: streams in error, no new process


def pauses(streams: Iterable[Stream], at: float) -> list[float]:
    """Of each stream that was decoding at that moment, how long its tokens stopped, in seconds.

    What was on its way at the moment of the blow still arrives, so the pause may begin a little later.
    """
    found = []
    for stream in streams:
        if stream.running(at) and stream.started(at):
            gaps = [
                after - before
                for before, after in pairwise(stream.times)
                if after > at and before <= at + ON_ITS_WAY
            ]
            if gaps:
                found.append(max(gaps))
    return found


def phases(struck: Struck, lines: Sequence[Line], resumed: float | None) -> dict[str, float]:
    """The time from a kill to the first token after it, by what it was spent on, in seconds."""
    if struck.blow.kind == "stop":
        return {}
    end = resumed or struck.back or struck.at
    between = [line for line in lines if struck.at < line.at <= end]
    result: dict[str, float] = {}
    mark = struck.at
    for name, role, pattern in PHASES.get(struck.blow.role, ()):
        found = (line for line in between if line.role.partition("-")[0] == role)
        line = next((line for line in found if re.search(pattern, line.text)), None)
        if line is not None:
            result[name] = max(line.at - mark, 0.0)
            mark = max(mark, line.at)
    if resumed is not None:
        result["prefill again, first token"] = max(resumed - mark, 0.0)
    return result


def raw(record: Record, lines: Sequence[Line]) -> dict[str, Any]:
    """The record as JSON. Times are seconds since the run began."""
    streams = record.streams
    blows = [_blow(struck, record, lines) for struck in record.struck]
    return {
        "settings": record.settings,
        "summary": totals(record),
        "by_kind": by_kind(blows),
        "blows": blows,
        "differences": record.differences,
        "faults": record.faults,
        "streams": [
            {
                "work": stream.work.index,
                "salt": stream.salt,
                "sent": round(stream.sent - record.began, 3),
                "first_token": round(stream.times[0] - record.began, 3) if stream.times else None,
                "ended": round(stream.ended - record.began, 3) if stream.ended else None,
                "tokens": stream.answer.tokens,
                "refused": stream.refused,
                "connections": stream.connections,
                "error": stream.error,
            }
            for stream in streams
        ],
    }


def _blow(struck: Struck, record: Record, lines: Sequence[Line]) -> dict[str, Any]:
    hit = pauses(record.streams, struck.at)
    running = [stream for stream in record.streams if stream.running(struck.at)]
    resumed = _resumed(struck, (stream for stream in running if stream.started(struck.at)))
    return {
        "role": struck.blow.role,
        "kind": struck.blow.kind,
        "at": round(struck.at - record.began, 3),
        "pid": struck.pid,
        "new_pid": struck.new_pid,
        "died": struck.died,
        "exit_code": struck.code,
        "stopped_seconds": round(struck.blow.seconds, 3),
        "overlaps": _overlaps(struck, record),
        "back_after": round(struck.back - struck.at, 3) if struck.back else None,
        "streams_in_decode": sum(stream.started(struck.at) for stream in running),
        "streams_before_first_token": sum(not stream.started(struck.at) for stream in running),
        "sequences": {
            "prefilling": struck.prefilling, "decoding": struck.decoding, "waiting": struck.waiting,
        },
        "pauses": [round(pause, 3) for pause in sorted(hit)],
        "phases": {name: round(seconds, 3) for name, seconds in phases(struck, lines, resumed).items()},
    }  # fmt: skip


def _overlaps(struck: Struck, record: Record) -> bool:
    """Whether another blow fell before the stack had recovered from this one, or this one before it had from
    another: what a pause is due to is then not known."""
    return any(
        other is not struck
        and (struck.at <= other.at <= _over(struck) or other.at <= struck.at <= _over(other))
        for other in record.struck
    )


def _over(struck: Struck) -> float:
    """When the pauses that a blow causes have begun and ended."""
    return max(struck.back or inf, struck.at + 2 * ON_ITS_WAY)


def _resumed(struck: Struck, streams: Iterable[Stream]) -> float | None:
    """When the stream that stopped for the longest went on."""
    at, longest, end = struck.at, 0.0, None
    for stream in streams:
        for before, after in pairwise(stream.times):
            if after > at and before <= at + ON_ITS_WAY and after - before > longest:
                longest, end = after - before, after
    return end


def by_kind(blows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Pauses over the streams that were decoding, by what was done to whom, seconds, and the phases' means.
    Blows that overlap are counted and not measured."""
    result = {}
    for name in sorted({f"{blow['kind']} {blow['role']}" for blow in blows}):
        members = [blow for blow in blows if f"{blow['kind']} {blow['role']}" == name]
        measured = [blow for blow in members if not blow["overlaps"]]
        found = [pause for blow in measured for pause in blow["pauses"]]
        spent: dict[str, list[float]] = {}
        for blow in measured:
            for phase, seconds in blow["phases"].items():
                spent.setdefault(phase, []).append(seconds)
        result[name] = {
            "blows": len(members),
            "measured": len(measured),
            "streams_hit_in_decode": len(found),
            "pause_median": round(statistics.median(found), 3) if found else None,
            "pause_worst": max(found, default=None),
            "phases_mean": {phase: round(statistics.mean(times), 3) for phase, times in spent.items()},
        }
    return result


def totals(record: Record) -> dict[str, Any]:
    streams = record.streams
    killed = [struck for struck in record.struck if struck.blow.kind != "stop"]
    return {
        "streams": len(streams),
        "tokens_compared": sum(stream.answer.tokens for stream in streams),
        "blows": len(record.struck),
        "killed_and_died": sum(struck.died for struck in killed),
        "killed": len(killed),
        "stopped": len(record.struck) - len(killed),
        "hit_in_prefill": sum(min(struck.prefilling, _pending(record, struck)) for struck in record.struck),
        "hit_in_decode": sum(
            stream.running(struck.at) and stream.started(struck.at)
            for struck in record.struck
            for stream in streams
        ),
        "resumed": sum(max(stream.connections - 1, 0) for stream in streams),
        "refused_attempts": sum(stream.refused for stream in streams),
        "streams_that_differ": len(record.differences),
        "lost_tokens": record.lost,
        "doubled_tokens": record.doubled,
        "faults": len(record.faults),
    }


def missed(record: Record) -> list[str]:
    """What a run of kills must have hit, and did not: it then says little."""
    total = totals(record)
    return [
        f"no stream was hit in {phase}; more --kills, longer answers or smaller steps hit more"
        for phase in ("prefill", "decode")
        if not total[f"hit_in_{phase}"]
    ]


def _pending(record: Record, struck: Struck) -> int:
    """Sequences of streams that had no token yet."""
    return sum(
        stream.work.body.get("n", 1)
        for stream in record.streams
        if stream.running(struck.at) and not stream.started(struck.at)
    )


_ROW = "{:<18}{:>6}{:>6}{:>6}{:>10}{:>9}  {}"


def words(summary: dict[str, Any]) -> str:
    """For people."""
    total = summary["summary"]
    told = [
        f"{total['streams']} streams, {total['tokens_compared']} tokens compared:"
        f" {total['lost_tokens']} lost, {total['doubled_tokens']} doubled,"
        f" {total['streams_that_differ']} streams differ, {total['faults']} other faults",
        f"{total['blows']} blows: {total['killed_and_died']} of {total['killed']} killed processes died,"
        f" {total['stopped']} were stopped; hit in prefill {total['hit_in_prefill']} times,"
        f" in decode {total['hit_in_decode']} times;"
        f" {total['resumed']} times a stream went on over another connection,"
        f" {total['refused_attempts']} attempts refused and repeated",
        "",
        _ROW.format("blow", "count", "alone", "hit", "median s", "worst s", "mean seconds by phase"),
    ]
    for name, kind in summary["by_kind"].items():
        spent = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in kind["phases_mean"].items())
        median, worst = (
            "-" if kind[field] is None else f"{kind[field]:.2f}" for field in ("pause_median", "pause_worst")
        )
        hit = kind["streams_hit_in_decode"]
        told.append(_ROW.format(name, kind["blows"], kind["measured"], hit, median, worst, spent))
    told += [f"DIFFERENT: {found['stream']}: {found['words']}" for found in summary["differences"]]
    told += [f"FAULT: {fault}" for fault in summary["faults"]]
    return "\n".join(told)
