"""What a run found, from its raw record: what each blow cost and of what that consists. Pure."""

import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import Any

from pillion.ops.chaos.schedule import Blow
from pillion.ops.chaos.streams import Stream
from pillion.ops.rig import Line

ON_ITS_WAY = 0.5  # seconds in which what a process had brought may still come when it is gone

_AGAIN = "noticed and started again"
PHASES: dict[str, tuple[tuple[str, str, str], ...]] = {
    "executor": (
        (_AGAIN, "up", r"starting executor\S* again"),
        ("process start and imports", "executor", r"looking for the model|listens on"),
        ("model load", "executor", r"^ready;| ready;"),
        ("attach", "scheduler", r"executor attached"),
    ),
    "scheduler": (
        (_AGAIN, "up", r"starting scheduler\S* again"),
        ("process start and imports", "scheduler", r"asks for the lease"),
        ("lease wait", "scheduler", r"lease held"),
        ("attach", "scheduler", r"executor attached"),
    ),
    "admission": (
        (_AGAIN, "up", r"starting admission again"),
        ("process start and lease wait", "admission", r"admission is active"),
    ),
    "gateway": (
        (_AGAIN, "up", r"starting gateway again"),
        ("process start and imports", "gateway", r"listens on http"),
    ),
    "valkey": (
        (_AGAIN, "up", r"starting valkey again"),
        ("process start, log read, reconnect", "scheduler", r"Redis is back"),
    ),
    "data": (("found out and put back", "scheduler", r"put back \d+ running"),),
}
"""What a line of the log ends, by role (`data`: what FLUSHALL takes): the phase's name, who says it, and the
line. The rest of a pause is prefill again (and the steps until then)."""
SIGNS = {"kill": "SIGKILL", "stop": "SIGSTOP", "term": "SIGTERM", "flush": "FLUSHALL"}


@dataclass(slots=True)
class Struck:
    """One blow and what it hit. Times are seconds of `time.monotonic`."""

    blow: Blow
    pid: int
    at: float
    replica: str = ""  # whose process it is, where there are several
    requests: frozenset[str] | None = None  # what it held; None where every stream goes through it
    died: bool = False  # for `stop`: it was seen stopped; for `flush`: nothing was left
    gone: float = 0.0  # when it had ended: one that was asked to may bring tokens until then
    code: int | None = None  # the exit code, of `term` only
    back: float | None = None  # when the role had a new process, the stack was ready, and tokens came
    new_pid: int | None = None
    prefilling: int = 0  # sequences just before, at the scheduler of the replica or at all
    decoding: int = 0
    waiting: int = 0

    @property
    def last(self) -> float:
        """Until when tokens of before the blow may come."""
        return max(self.at, self.gone) + ON_ITS_WAY

    @property
    def name(self) -> str:
        """As the log calls it."""
        return self.named(self.blow.role)

    def named(self, role: str) -> str:
        """This role's process of the same replica, as the log calls it."""
        return f"{role}-{self.replica}" if self.replica else role

    def running(self, streams: Iterable[Stream]) -> list[Stream]:
        """Those that it touched."""
        return [
            stream
            for stream in streams
            if stream.running(self.at) and (self.requests is None or stream.request in self.requests)
        ]


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


def pauses(struck: Struck, streams: Iterable[Stream]) -> list[tuple[float, float]]:
    """Of each of these streams that was decoding at that moment, how long its tokens stopped, in seconds, and
    when they went on.

    What was on its way at the moment of the blow still arrives, so the pause may begin a little later.
    """
    found = []
    for stream in streams:
        if stream.running(struck.at) and stream.started(struck.at):
            gaps = [
                (after - before, after)
                for before, after in pairwise(stream.times)
                if after > struck.at and before <= struck.last
            ]
            if gaps:
                found.append(max(gaps))
    return found


def phases(struck: Struck, lines: Sequence[Line], resumed: float | None) -> dict[str, float]:
    """The time from a blow to the first token after it, by what it was spent on, in seconds."""
    result: dict[str, float] = {}
    mark = struck.at
    if struck.blow.kind == "stop":
        mark += struck.blow.seconds
        result["stopped"] = struck.blow.seconds
    else:
        # A busy machine may bring a line later than the token that it made possible.
        end = resumed or struck.back or struck.at
        between = [line for line in lines if struck.at < line.at <= max(end, struck.back or 0.0)]
        of = "data" if struck.blow.kind == "flush" else struck.blow.role
        for name, role, pattern in PHASES.get(of, ()):
            who = struck.named(role) if role in ("scheduler", "executor") else role
            found = (line for line in between if who in (line.role, line.role.partition("-")[0]))
            line = next((line for line in found if re.search(pattern, line.text)), None)
            if line is not None:
                until = max(mark, min(line.at, end))
                result[name] = until - mark
                mark = until
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
    running = struck.running(record.streams)
    hit = pauses(struck, running)
    _, resumed = max(hit, default=(0.0, None))  # where it took longest
    return {
        "role": struck.blow.role,
        "replica": struck.replica,
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
        "sequences_in_prefill": _in_prefill(struck, running),
        "sequences": {
            "prefilling": struck.prefilling, "decoding": struck.decoding, "waiting": struck.waiting,
        },
        "pauses": [round(pause, 3) for pause, _ in sorted(hit)],
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
    return max(struck.back or inf, struck.last + ON_ITS_WAY)


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
            "hit_in_prefill": sum(blow["sequences_in_prefill"] for blow in members),
            "hit_in_decode": sum(blow["streams_in_decode"] for blow in members),
            "pauses": len(found),
            "pause_median": round(statistics.median(found), 3) if found else None,
            "pause_worst": max(found, default=None),
            "phases_mean": {phase: round(statistics.mean(times), 3) for phase, times in spent.items()},
        }
    return result


def totals(record: Record) -> dict[str, Any]:
    streams, struck = record.streams, record.struck
    hit = [(one, one.running(streams)) for one in struck]
    died = [one for one in struck if one.blow.kind in ("kill", "term")]
    kills: dict[str, dict[str, int]] = {}
    for one in struck:
        signs = kills.setdefault(one.blow.role, {})
        signs[SIGNS[one.blow.kind]] = signs.get(SIGNS[one.blow.kind], 0) + 1
    return {
        "streams": len(streams),
        "tokens_compared": sum(stream.answer.tokens for stream in streams),
        "blows": len(struck),
        "blows_by_role": kills,
        "killed_and_died": sum(one.died for one in died),
        "killed": len(died),
        "stopped": sum(one.blow.kind == "stop" for one in struck),
        "emptied": sum(one.blow.kind == "flush" for one in struck),
        "hit_in_prefill": sum(_in_prefill(one, running) for one, running in hit),
        "hit_in_decode": sum(stream.started(one.at) for one, running in hit for stream in running),
        "streams_hit": len({id(stream) for _, running in hit for stream in running}),
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


def _in_prefill(struck: Struck, running: Iterable[Stream]) -> int:
    """Sequences: those that the scheduler had in prefill, of streams that had no token yet."""
    pending = sum(int(stream.work.body.get("n", 1)) for stream in running if not stream.started(struck.at))
    return min(struck.prefilling, pending)
