"""How quick a machine was in a while, over what a cost model says: no simulation knows that before. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pillion.ops.profile.served import Step
from pillion.steptime import StepTime, Work


@dataclass(frozen=True, slots=True)
class Paced:
    """A cost model on a machine that takes `pace` times as long."""

    model: StepTime
    pace: float

    def __call__(self, work: Work) -> float:
        return self.pace * self.model.seconds(work)


def pace(steps: Iterable[Step], model: StepTime, between: tuple[float, float]) -> float:
    """Measured over predicted seconds of all steps that ended `between` two times of the monotonic clock.

    Raises ValueError where there is none: was the stack's recording full, or of another stack?
    """
    seen = [step for step in steps if between[0] <= step.at <= between[1]]
    predicted = sum(model.seconds(step.work) for step in seen)
    if not predicted:
        raise ValueError("the recordings have no step of a run: do they come from this stack (--record)?")
    return sum(step.seconds for step in seen) / predicted


def evened(ratios: Sequence[float]) -> tuple[float, ...]:
    """The same spread about a mean of 1: the pace has the rest."""
    mean = sum(ratios) / len(ratios) if ratios else 1.0
    return tuple(ratio / mean for ratio in ratios)
