"""Batching policies, one a file, behind one interface."""

from typing import Protocol

from ..budget import Budget
from ..plan import Draft
from ..roster import Roster
from .stall_free import StallFree


class Policy(Protocol):
    """Decides what a step carries."""

    def compose(self, roster: Roster, draft: Draft, budget: Budget) -> int:
        """Fills the draft and returns how many tokens the step was allowed."""
        ...


POLICIES: dict[str, type[Policy]] = {"stall-free": StallFree}


class UnknownPolicy(ValueError):
    """The configuration names a policy that does not exist."""


def make(name: str) -> Policy:
    """Raises UnknownPolicy."""
    policy = POLICIES.get(name)
    if policy is None:
        raise UnknownPolicy(f"--policy {name} is unknown; there is {', '.join(sorted(POLICIES))}")
    return policy()
