"""Why a request took as long as it did: its timeline at the replica and its delivery here, in parts. Pure.

The parts of a time sum to it. What is said of other requests is counts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pillion.contracts.timeline import (
    FAILED,
    LOST,
    PREEMPTED,
    TAKEN,
    ChoiceSeen,
    Delivery,
    GapSeen,
    StepSeen,
    Timeline,
)

Json = dict[str, Any]

_LEFT = {
    PREEMPTED: "it was preempted, as others needed its KV blocks",
    FAILED: "a step failed",
    LOST: "the executor was lost",
}
WITHOUT = "steps without it"  # no KV block was free for its next token, or others had their turn


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of time, in seconds; below zero where clocks or results crossed."""

    what: str
    seconds: float

    def json(self) -> Json:
        return {"what": self.what, "seconds": _round(self.seconds)}


def explanation(status: str, timeline: Timeline, delivery: Delivery | None) -> Json:
    """`delivery`: None where no token has come to the gateway that was asked, nor is it on record."""
    delivered = delivery if delivery is not None and delivery.first else None
    firsts = [choice for choice in timeline.choices if choice.first]
    first = min(firsts, key=lambda choice: choice.first, default=None)
    choice = _worst_choice(timeline, delivered)
    planned = any(each.planned for each in timeline.choices)
    return {
        "object": "explanation",
        "id": timeline.request,
        "status": status if planned or status != "running" else "queued",
        "replica": timeline.replica,
        "arrival": timeline.arrival,
        "ttft": _ttft(timeline, first, delivery) if first is not None and not first.before else None,
        "queue": _queue(timeline, choice),
        "prefill": _prefill(choice),
        "output_tokens": sum(each.tokens for each in timeline.choices),
        "preemptions": sum(each.preemptions for each in timeline.choices),
        "recomputed_tokens": sum(each.recomputed for each in timeline.choices),
        "worst_gap": _worst(choice, delivered),
        "replica_gaps": [
            _told(choice.choice, gap.position, gap.began, parts(gap), gap) for gap in choice.gaps
        ],
        "replica_spans": list(_spans(choice)),
    }


def _worst_choice(timeline: Timeline, delivery: Delivery | None) -> ChoiceSeen:
    if delivery is not None and delivery.seconds:
        for choice in timeline.choices:
            if choice.choice == delivery.choice:
                return choice
    return timeline.choices[0]


# --- up to the first token -------------------------------------------------------------------------


def _ttft(timeline: Timeline, choice: ChoiceSeen, delivery: Delivery | None) -> Json:
    submitted = delivery.submitted if delivery else 0.0
    here = delivery.first if delivery else 0.0
    marks = [
        ("preparation at the gateway", submitted),
        ("admission" if submitted else "gateway and admission", timeline.forwarded),
        ("way to the scheduler", timeline.accepted),
        ("queue at the scheduler", choice.planned),
        ("prefill", choice.first),
        ("delivery", here),
    ]
    told, at = [], timeline.arrival
    for what, until in marks:
        if until:
            told.append(Part(what, until - at))
            at = until
    return {
        "seconds": _round(at - timeline.arrival),
        "scheduling_delay": _round(choice.planned - timeline.arrival),
        "parts": [part.json() for part in told],
    }


def _queue(timeline: Timeline, choice: ChoiceSeen) -> Json:
    away = max(timeline.attached - timeline.accepted, 0.0) if timeline.attached else None
    return {
        "ahead": choice.ahead,
        "running": choice.running,
        "steps_full": choice.full,
        "steps_without_slot": choice.no_slot,
        "steps_without_room": choice.no_room,
        "seconds_without_executor": None if away is None else _round(away),
        "why": _held(choice, away),
    }


def _held(choice: ChoiceSeen, away: float | None) -> str:
    """What most of the steps that it waited for lacked."""
    if away is None:
        return "no executor is there"
    causes = (
        (choice.full, "steps had no tokens left for it"),
        (choice.no_slot, "all slots were taken"),
        (choice.no_room, "the KV cache had no room for it, or the policy let nobody in"),
    )
    steps, cause = max(causes)
    if steps:
        return cause
    if away:
        return "no executor was there"
    return "the step that ran had to end first" if choice.running else "nothing held it"


def _prefill(choice: ChoiceSeen) -> Json:
    return {
        "prompt_tokens": choice.prompt,
        "earlier_tokens": choice.before,
        "cached_tokens": choice.cached,
        "chunks": [_step(step) for step in choice.chunks],
        "more_chunks": choice.more_chunks,
    }


# --- between tokens --------------------------------------------------------------------------------


def _worst(choice: ChoiceSeen, delivery: Delivery | None) -> Json | None:
    """The longest gap at the gateway; where none is known there, at the replica."""
    gap = next(iter(choice.gaps), None)
    seen = delivery if delivery is not None and delivery.seconds else None
    if seen is None:
        return None if gap is None else _told(choice.choice, gap.position, gap.began, parts(gap), gap)
    gap = next((each for each in choice.gaps if each.position == seen.position), None)
    if gap is not None:
        told = [*parts(gap), Part("delivery", seen.seconds - gap.seconds)]
        return _told(choice.choice, seen.position, seen.began, told, gap)
    most = choice.gaps[-1].seconds if choice.gaps else 0.0
    told = [Part("at the replica, at most", min(most, seen.seconds))]
    told.append(Part("delivery", seen.seconds - told[0].seconds))
    return _told(choice.choice, seen.position, seen.began, told, None)


def _told(choice: int, position: int, began: float, told: Sequence[Part], gap: GapSeen | None) -> Json:
    return {
        "choice": choice,
        "position": position,
        "began": began,
        "seconds": _round(sum(part.seconds for part in told)),
        "parts": [part.json() for part in told],
        "steps": [] if gap is None else [_step(step) for step in gap.steps],
        "more_steps": 0 if gap is None else gap.more,
        "why": why(told, gap),
    }


def _spans(choice: ChoiceSeen) -> Iterator[Json]:
    """All gaps at the replica as they went on, neighbours together where there are many."""
    began = choice.first
    for span in choice.spans:
        yield {
            "began": began,
            "ended": span.ended,
            "gaps": span.gaps,
            "longest_seconds": _round(span.longest),
        }
        began = span.ended


def parts(gap: GapSeen) -> list[Part]:
    """Of a gap at the replica."""
    if gap.marks:
        return list(_phases(gap))
    own = sum(step.seconds for step in gap.steps if step.own)
    others = sum(step.seconds for step in gap.steps if not step.own) + gap.more_seconds
    idle = sum(step.idle for step in gap.steps) + gap.more_idle
    told = [Part("executor idle", idle), Part("step", own)]
    if others:
        told.append(Part(WITHOUT, others))
    return [*told, Part("results on their way", gap.seconds - idle - own - others)]


def _phases(gap: GapSeen) -> Iterator[Part]:
    without = any(not step.own for step in gap.steps if step.ended <= gap.marks[0][1])
    what, at = WITHOUT if without else "before that", gap.began
    for mark, until in (*gap.marks, ("", gap.began + gap.seconds)):
        yield Part(what, until - at)
        what, at = "prefill anew" if mark == TAKEN else mark, until


def why(told: Sequence[Part], gap: GapSeen | None) -> str:
    """The largest part, in a sentence."""
    largest = max(told, key=lambda part: part.seconds)
    if gap is not None and gap.marks:
        left = dict.fromkeys(_LEFT[mark] for mark, _ in gap.marks if mark in _LEFT)
        times = ", ".join(f"{part.what} {_ms(part.seconds)}" for part in told if part.seconds >= 0.001)
        return f"{' and '.join(left)}: {times}"
    if largest.what == WITHOUT:
        return f"{WITHOUT} took {_ms(largest.seconds)}: no KV block was free, or others had their turn"
    longest = max(gap.steps, key=lambda step: step.seconds, default=None) if gap is not None else None
    if longest is None or largest.what in ("delivery", "executor idle", "results on their way"):
        return f"{largest.what} took {_ms(largest.seconds)}"
    predicted = _ms(longest.predicted)
    return f"step {longest.step} took {_ms(longest.seconds)}, {predicted} were predicted: {carried(longest)}"


def carried(step: StepSeen) -> str:
    """`8 decodes and a chunk of 1500 tokens`"""
    decodes = f"{step.decodes} decode{'' if step.decodes == 1 else 's'}"
    if step.passes > 1:
        decodes += f", {step.passes} times over"
    if not step.chunks:
        return decodes
    tokens = sum(step.chunks)
    chunk = (
        f"a chunk of {tokens} tokens"
        if len(step.chunks) == 1
        else f"{len(step.chunks)} chunks of {tokens} tokens"
    )
    return f"{decodes} and {chunk}" if step.decodes else chunk


def _step(step: StepSeen) -> Json:
    return {
        "step": step.step,
        "sent": step.sent,
        "ended": step.ended,
        "seconds": _round(step.seconds),
        "predicted_seconds": _round(step.predicted),
        "idle_seconds": _round(step.idle),
        "budget": step.budget,
        "decodes": step.decodes,
        "chunk_tokens": list(step.chunks),
        "passes": step.passes,
        "waiting": step.waiting,
        "own_tokens": step.own,
    }


def _round(seconds: float) -> float:
    return round(seconds, 6)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms"
