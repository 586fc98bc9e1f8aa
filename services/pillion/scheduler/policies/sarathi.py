"""Decode-maximal batching: one chunk of one prompt, and all decodes that run ride on it."""

from ..budget import Allowance, Budget
from ..plan import Draft
from .fixed_budget import FixedBudget
from .placing import Room


class Sarathi(FixedBudget):
    """SARATHI's policy (arXiv 2308.16369). Chunk and riders together are --max-num-batched-tokens.

    With B slots a chunk has at most B - 1 riders, since its own prompt holds a slot. The last chunk of a
    prompt is as short as what is left of it: no second prompt fills the step.
    """

    def room(self, draft: Draft, budget: Budget, allowed: Allowance) -> Room:
        return lambda _: 0 if draft.chunks else allowed.tokens - draft.tokens
