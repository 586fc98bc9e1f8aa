"""Who is struck when, from the run's seed. Pure."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["kill", "stop", "term"]

ROLES = ("gateway", "admission", "scheduler", "executor", "valkey")
STOP_SHARE = 0.25  # of the blows: the process is frozen for some seconds instead of killed
AT_ONCE_SHARE = 0.15  # of the blows: they come while the stack has not recovered from the one before
LONGEST_PAUSE = 4.0  # seconds between recovery and the next blow
LONGEST_STOP = 5.0  # seconds


@dataclass(frozen=True, slots=True)
class Blow:
    """`kill` is SIGKILL, `stop` SIGSTOP and after `seconds` SIGCONT, `term` SIGTERM."""

    role: str
    kind: Kind
    after: float  # seconds to wait once the stack has recovered
    at_once: bool = False  # do not wait for that
    seconds: float = 0.0


def blows(seed: int, count: int, roles: Sequence[str]) -> list[Blow]:
    """`count` blows, spread over the roles as evenly as they go, in random order at random moments."""
    dice = random.Random(f"blows {seed}")
    struck = [roles[number % len(roles)] for number in range(count)]
    dice.shuffle(struck)
    result = []
    for number, role in enumerate(struck):
        stop = dice.random() < STOP_SHARE
        at_once = number > 0 and dice.random() < AT_ONCE_SHARE
        result.append(
            Blow(
                role=role,
                kind="stop" if stop else "kill",
                after=dice.uniform(0.0, LONGEST_PAUSE),
                at_once=at_once,
                seconds=dice.uniform(0.5, LONGEST_STOP) if stop else 0.0,
            )
        )
    return result


def rolling(roles: Sequence[str]) -> list[Blow]:
    """Each service is asked to end, one after the other, as a rolling restart does."""
    return [Blow(role, "term", after=1.0) for role in roles]
