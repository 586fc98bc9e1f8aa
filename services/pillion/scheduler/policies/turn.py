"""The steps that come again and again while prompts wait: from them a heartbeat tells how fast these go."""

from pillion.steptime import Work

from ..budget import Budget, one_prompt

Turn = tuple[tuple[Work, int], ...]
"""Steps, and how often each comes in a turn."""


def prompts_alone(budget: Budget) -> Work:
    """As many tokens as a step may have, and no decodes."""
    return one_prompt(budget.limit, 0, 0, 0)


def decodes_alone(decodes: int, context: int) -> Work:
    return one_prompt(decodes, decodes, context, 0)
