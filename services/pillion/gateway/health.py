"""What heartbeats say: which replicas there are, and whether a request can run. Pure; times are passed in."""

from collections.abc import Iterator
from dataclasses import dataclass

from pillion.contracts.entries import Facts, Heartbeat
from pillion.gateway.recent import Steps

FRESH = 3.5  # seconds; a replica speaks at least once a second
STALLED = 5.0  # seconds that a step may be overdue
FORGOTTEN = 600.0  # seconds of silence after which a replica is known no more
MOST = 1024  # replicas; one more, and the one that has been silent the longest is known no more


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether new work can run. `reason` is for machines: see `Replicas.verdict`."""

    ready: bool
    reason: str = ""
    message: str = ""


READY = Verdict(True)


@dataclass(slots=True)
class _Seen:
    beat: Heartbeat
    at: float  # seconds, monotonic
    facts: Facts | None  # the last that it told, also while its executor is away
    steps: Steps  # of the last minute


class Replicas:
    """The last heartbeat of each replica, while others speak; of those that are gone, not for ever."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}  # who spoke last comes last

    def heard(self, beat: Heartbeat, now: float) -> Heartbeat | None:
        """Gives the replica's beat before this one. A beat of a former holder of its lease is dropped."""
        known = self._seen.get(beat.replica)
        if known is not None and beat.epoch < known.beat.epoch:
            return None
        facts = beat.facts or (known.facts if known else None)
        steps = known.steps if known else Steps()
        steps.heard(known.beat if known else None, beat, now)
        self._seen.pop(beat.replica, None)
        self._seen[beat.replica] = _Seen(beat, now, facts, steps)
        while len(self._seen) > MOST or now - next(iter(self._seen.values())).at > FORGOTTEN:
            self._seen.pop(next(iter(self._seen)))
        return known.beat if known else None

    def models(self) -> dict[str, Facts]:
        """Facts by served name, of the replica with the longest context where there are several."""
        result: dict[str, Facts] = {}
        for seen in self._seen.values():
            facts = seen.facts
            if facts is None:
                continue
            other = result.get(facts.model)
            if other is None or facts.max_model_len > other.max_model_len:
                result[facts.model] = facts
        return result

    def verdict(self, model: str, now: float) -> Verdict:
        """Ready when one replica of the model is. Else the reason of the one that is nearest to being it:
        no_replica, silent (no fresh heartbeat), draining, unready (it says why), stalled.
        """
        best: tuple[int, Verdict] | None = None
        for name, seen in sorted(self._seen.items()):
            if seen.facts is not None and seen.facts.model != model:
                continue
            rank, verdict = _judge(name, seen, now)
            if verdict.ready:
                return verdict
            if best is None or rank > best[0]:
                best = rank, verdict
        return best[1] if best else Verdict(False, "no_replica", "No replica of the model is known.")

    def last(self, name: str) -> Heartbeat | None:
        """The replica's last beat, of whatever age."""
        seen = self._seen.get(name)
        return None if seen is None else seen.beat

    def speaking(self, now: float) -> Iterator[tuple[Heartbeat, Facts]]:
        """The last beat of each replica that is not silent, with the facts that it told."""
        for seen in self._seen.values():
            if seen.facts is not None and now - seen.at <= FRESH:
                yield seen.beat, seen.facts

    def minutes(self, now: float) -> list[tuple[dict[str, object], Heartbeat, Steps]]:
        """Each replica as `describe` has it, with its last beat and what its steps carried."""
        return [
            (row, seen.beat, seen.steps)
            for row, (_, seen) in zip(self.describe(now), sorted(self._seen.items()), strict=True)
        ]

    def describe(self, now: float) -> list[dict[str, object]]:
        """For the health endpoint."""
        return [
            {
                "replica": name,
                "state": seen.beat.state,
                "reason": _judge(name, seen, now)[1].reason,
                "age_seconds": round(now - seen.at, 3),
                "steps": seen.beat.steps,
                "stalled_seconds": round(seen.beat.stalled, 3),
                "running": seen.beat.running,
                "waiting": seen.beat.waiting,
            }
            for name, seen in sorted(self._seen.items())
        ]


def _judge(name: str, seen: _Seen, now: float) -> tuple[int, Verdict]:
    """How near to ready (for the choice of what to tell), and the verdict."""
    beat, age = seen.beat, now - seen.at
    if age > FRESH:
        return 0, Verdict(False, "silent", f"Replica {name} has been silent for {age:.0f} s.")
    if beat.state == "draining":
        return 1, Verdict(
            False, "draining", f"Replica {name} takes no new work: {beat.reason or 'it is shutting down'}."
        )
    if beat.state != "ready":
        why = beat.reason or "it does not say why"
        return 2, Verdict(False, "unready", f"Replica {name} is not ready: {why}.")
    if beat.stalled > STALLED:
        return 3, Verdict(False, "stalled", f"Replica {name} has a step overdue by {beat.stalled:.0f} s.")
    if seen.facts is None:
        return 2, Verdict(False, "unready", f"Replica {name} has no model yet.")
    return 4, READY
