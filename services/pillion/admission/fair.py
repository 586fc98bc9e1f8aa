"""Fair shares by tokens served: virtual token counters. Pure.

After Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024). Each tenant has a counter of the
tokens that it was served, divided by its weight; of the tenants that wait, the one with the least goes first.
A request is counted when it goes on, with the part of its prompt that no prefix saves and the output that
its tenant's requests bring on average, and corrected when it has ended (the paper's variant that predicts
lengths). Prompt and output tokens count alike: each is one row of a step.

Bound: let U be the most that one request is counted for, and F the most that a tenant has in flight, as
counted or as used. While two tenants of one weight both wait for the same replicas, their counters differ by
at most U + 2F, and what both were served since they began to wait by at most 2(U + 2F), whatever they send.
"""

from collections.abc import Callable, Iterable


class Shares:
    """The counters. `weight` tells a tenant's."""

    def __init__(self, weight: Callable[[str], float]) -> None:
        self.counters: dict[str, float] = {}
        self._weight = weight
        self._level = 0.0  # the highest counter at which anybody went on

    def __getitem__(self, tenant: str) -> float:
        return self.counters.get(tenant, 0.0)

    def restore(self, counters: Iterable[tuple[str, float]]) -> None:
        """Takes over what a predecessor counted."""
        self.counters.update(counters)
        self._level = max(self.counters.values(), default=0.0)

    def awake(self, tenant: str, waiting: Iterable[str]) -> float:
        """The counter of a tenant of whom nothing waited, once something does. `waiting`: who else waits.

        It is lifted to the least of theirs, or to where the last ones went on: idling saves up no credit.
        """
        least = min((self[other] for other in waiting), default=self._level)
        return max(self[tenant], least)

    def wake(self, tenant: str, waiting: Iterable[str]) -> None:
        self.counters[tenant] = self.awake(tenant, waiting)

    def go(self, tenant: str, tokens: float) -> None:
        """A request of the tenant goes on, and is counted for so many tokens."""
        self._level = max(self._level, self[tenant])
        self.correct(tenant, tokens)

    def correct(self, tenant: str, tokens: float) -> None:
        self.counters[tenant] = self[tenant] + self.price(tenant, tokens)

    def price(self, tenant: str, tokens: float) -> float:
        """What so many tokens move the tenant's counter by."""
        return tokens / self._weight(tenant)
