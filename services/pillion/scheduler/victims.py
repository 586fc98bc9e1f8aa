"""Who gives its blocks to whom."""

from .sequence import Sequence, State

PROTECTED = 3  # preemptions after which a sequence is no victim of its own priority


def lower(sequence: Sequence, running: list[Sequence]) -> list[Sequence]:
    """Those of strictly lower priority."""
    return [other for other in running if other.priority > sequence.priority]


def last(victims: list[Sequence]) -> Sequence | None:
    """The lowest-priority, latest-arrived of them."""
    return max(victims, key=lambda other: other.rank, default=None)


def victim_of(sequence: Sequence, running: list[Sequence]) -> Sequence | None:
    """Who loses its blocks to this one, which decodes.

    It comes after this one in rank, so the highest-priority oldest is never a victim.
    """
    later = [
        other
        for other in running
        if other.priority > sequence.priority
        or (other.rank > sequence.rank and other.preemptions < PROTECTED)
    ]
    return last(later)


def yielding(running: list[Sequence], suspect: Sequence | None) -> Sequence:
    """Who gives its blocks to the others when nobody can go on.

    Never a suspect, and without one never the highest-priority oldest. Who was preempted too often is
    spared while another of its priority, or a lower one's, is there; prompts go first, then the latest.
    """
    first = suspect or min(running, key=lambda sequence: sequence.rank)

    def order(sequence: Sequence) -> tuple[bool, bool, tuple[int, float, int]]:
        spared = sequence.priority <= first.priority and sequence.preemptions >= PROTECTED
        return not spared, sequence.state is State.PREFILLING, sequence.rank

    return max((sequence for sequence in running if sequence is not first), key=order)
