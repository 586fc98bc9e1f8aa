"""Who is struck when, from the run's seed. Pure."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

Kind = Literal["kill", "stop", "flush", "term"]

ROLES = ("gateway", "admission", "scheduler", "executor", "valkey")
WEIGHTS: dict[Kind, int] = {"kill": 3, "stop": 1, "flush": 4}
"""How often each kind is drawn, of those that a role can suffer: only Valkey can be emptied."""
AT_ONCE_SHARE = 0.15  # of the blows: they come while the stack has not recovered from the one before
LONGEST_PAUSE = 4.0  # seconds between recovery and the next blow
LONGEST_STOP = 5.0  # seconds


@dataclass(frozen=True, slots=True)
class Blow:
    """`kill` is SIGKILL, `stop` SIGSTOP and after `seconds` SIGCONT, `flush` FLUSHALL, `term` SIGTERM."""

    role: str
    kind: Kind
    after: float  # seconds to wait once the stack has recovered
    at_once: bool = False  # do not wait for that
    seconds: float = 0.0
    which: float = 0.0  # in [0, 1): whom, where the role has a process for each replica


def blows(seed: int, count: int, roles: Sequence[str], kinds: Sequence[Kind] = tuple(WEIGHTS)) -> list[Blow]:
    """`count` blows, spread over the roles as evenly as they go, in random order at random moments. Roles
    that can suffer none of the kinds are left out. Raises ValueError where none is left."""
    possible: dict[str, list[Kind]] = {
        role: [kind for kind in WEIGHTS if kind in kinds and (kind != "flush" or role == "valkey")]
        for role in roles
    }
    struck = [role for role, suffers in possible.items() if suffers]
    if not struck:
        raise ValueError(f"nothing of {', '.join(kinds)} can be done to {', '.join(roles)}")
    dice = random.Random(f"blows {seed}")
    struck = [struck[number % len(struck)] for number in range(count)]
    dice.shuffle(struck)
    result: list[Blow] = []
    together: list[Blow] = []  # since the stack last recovered
    for role in struck:
        suffers = possible[role]
        kind = dice.choices(suffers, [WEIGHTS[kind] for kind in suffers])[0]
        blow = Blow(
            role=role,
            kind=kind,
            after=dice.uniform(0.0, LONGEST_PAUSE),
            at_once=dice.random() < AT_ONCE_SHARE,
            seconds=dice.uniform(0.5, LONGEST_STOP) if kind == "stop" else 0.0,
            which=dice.random(),
        )
        if not together or _forgotten([*together, blow]):
            blow = replace(blow, at_once=False)
        together = [*together, blow] if blow.at_once else [blow]
        result.append(blow)
    return result


def _forgotten(together: Sequence[Blow]) -> bool:
    """Whether streams could be lost for good, since a gateway and Redis are all that know of a stream which
    has not ended: nobody promises to outlive the loss of both at the same moment."""
    return any(blow.role == "gateway" for blow in together) and any(blow.kind == "flush" for blow in together)


def rolling(roles: Sequence[str]) -> list[Blow]:
    """Each service is asked to end, one after the other, as a rolling restart does."""
    return [Blow(role, "term", after=1.0) for role in roles]


def each(blows: Sequence[Blow], counts: Mapping[str, int]) -> list[Blow]:
    """A blow by SIGTERM for every process of its role, which are `counts` by role."""
    return [
        replace(blow, which=(number + 0.5) / count) if blow.kind == "term" else blow
        for blow in blows
        for count in [counts.get(blow.role, 1)]
        for number in range(count if blow.kind == "term" else 1)
    ]


def kinds(text: str) -> list[Kind]:
    """Of a list with commas. Raises ValueError."""
    named = [part.strip() for part in text.split(",") if part.strip()]
    if unknown := sorted(set(named) - set(WEIGHTS)):
        raise ValueError(f"{unknown[0]}; there is {', '.join(WEIGHTS)}")
    return [kind for kind in get_args(Kind) if kind in named]
