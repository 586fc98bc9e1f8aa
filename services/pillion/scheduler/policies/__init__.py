"""Batching policies, one a file, behind one interface. `placing` is what they are made of."""

from typing import Protocol

from ..budget import Budget
from ..plan import Draft
from ..roster import Roster
from .chunked_only import ChunkedOnly
from .fixed_budget import FixedBudget
from .hybrid_only import HybridOnly
from .orca import Orca
from .prefill_first import PrefillFirst
from .request_level import RequestLevel
from .sarathi import Sarathi
from .stall_free import StallFree
from .turn import Turn


class Policy(Protocol):
    """Decides what a step carries."""

    reserves: bool  # a sequence is let in only when blocks for all that it may ever hold are there
    batches: bool  # prompts wait until all that run have ended, and then go together

    def compose(self, roster: Roster, draft: Draft, budget: Budget) -> int:
        """Fills the draft and returns how many tokens the step was allowed."""
        ...

    def turn(self, budget: Budget, decodes: int, context: int, left: int) -> Turn:
        """The steps that come again and again while prompts wait beside so many decodes.

        `context`: the decodes' positions; `left`: the most tokens that one of them has to come.
        """
        ...

    def fits(self, budget: Budget, decodes: int, context: int) -> bool:
        """Whether so many decodes keep what the policy keeps while prompts wait."""
        ...


POLICIES: dict[str, type[Policy]] = {
    "stall-free": StallFree,
    "fixed-budget": FixedBudget,
    "sarathi": Sarathi,
    "prefill-first": PrefillFirst,
    "orca": Orca,
    "request-level": RequestLevel,
    "chunked-only": ChunkedOnly,
    "hybrid-only": HybridOnly,
}


class UnknownPolicy(ValueError):
    """The configuration names a policy that does not exist."""


def make(name: str) -> Policy:
    """Raises UnknownPolicy."""
    policy = POLICIES.get(name)
    if policy is None:
        raise UnknownPolicy(f"--policy {name} is unknown; there is {', '.join(sorted(POLICIES))}")
    return policy()
