"""What became of a request at its replica and at its gateway: counts and times, to explain its delays with.

Times are seconds since the epoch by the clock of the process that took them.
"""

from pillion.contracts.entries import SCHEMA, Struct

PREEMPTED, FAILED, LOST, TAKEN = "preempted", "failed", "lost", "taken"


class StepSeen(Struct, frozen=True, array_like=True):
    """A plan that ran."""

    step: int
    sent: float
    ended: float  # its result was there
    seconds: float  # that the executor computed, all passes
    idle: float  # that the executor was idle before
    predicted: float  # of `seconds`
    budget: int  # tokens
    decodes: int  # rows
    chunks: tuple[int, ...] = ()  # tokens of each prompt
    passes: int = 1
    waiting: int = 0  # sequences without a slot
    own: int = 0  # tokens of the sequence that is explained


class GapSeen(Struct, frozen=True, array_like=True):
    """The time between two tokens of a choice, as their results came."""

    position: int  # of the later one
    began: float
    seconds: float
    steps: tuple[StepSeen, ...]  # the longest that ended in it, in their order
    more: int = 0  # steps that are left out
    more_seconds: float = 0.0  # computed in them
    more_idle: float = 0.0
    marks: tuple[tuple[str, float], ...] = ()  # PREEMPTED, FAILED, LOST, TAKEN, each with its time


class SpanSeen(Struct, frozen=True, array_like=True):
    """Neighbouring gaps of a choice, as their results came; it begins where the one before ends."""

    ended: float
    gaps: int
    longest: float  # seconds


class ChoiceSeen(Struct, frozen=True, array_like=True):
    """A sequence."""

    choice: int
    prompt: int
    before: int  # tokens that it had when it came
    tokens: int  # that it got
    planned: float = 0.0  # the first step with tokens of it was planned; 0: not yet
    first: float = 0.0  # its first result came
    ahead: int = 0  # sequences that waited when it came
    running: int = 0  # sequences that ran then
    full: int = 0  # steps, while it waited, that had no token left
    no_slot: int = 0  # ... in which all slots were taken
    no_room: int = 0  # ... in which there was both, and it was not let in
    cached: int = 0  # tokens that needed no computing at first
    chunks: tuple[StepSeen, ...] = ()  # steps with a chunk of it
    more_chunks: int = 0
    preemptions: int = 0
    recomputed: int = 0  # tokens
    gaps: tuple[GapSeen, ...] = ()  # the longest
    spans: tuple[SpanSeen, ...] = ()  # all gaps, from `first` on


class Timeline(Struct, frozen=True):
    """At the replica, of one life of a request."""

    request: str
    replica: str
    arrival: float  # at the gateway
    forwarded: float  # by admission
    accepted: float  # by the scheduler
    attached: float  # since when an executor was there; 0: there is none
    choices: tuple[ChoiceSeen, ...]  # those with the longest gaps
    more: int = 0  # choices that are left out
    v: int = SCHEMA


class Delivery(Struct, frozen=True):
    """At the gateway: when its tokens were there to be written to the client."""

    submitted: float = 0.0  # 0: it went on from an earlier life
    first: float = 0.0  # 0: none came yet
    choice: int = 0  # of the longest gap, as the next three
    position: int = 0
    began: float = 0.0
    seconds: float = 0.0
    v: int = SCHEMA
