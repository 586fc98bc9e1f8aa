"""When a child that died is started again. Pure."""

from dataclasses import dataclass, replace

HEALTHY_SECONDS = 10.0  # a life this long clears the count
MOST_QUICK_DEATHS = 4  # in a row; the fourth ends the stack
_FIRST_PAUSE = 0.1  # seconds
_LONGEST_PAUSE = 5.0
USAGE = 2  # a service's exit code for a wrong setting


@dataclass(frozen=True, slots=True)
class Restarts:
    """How often one child died early in a row."""

    quick_deaths: int = 0

    def died(self, lived: float, code: int, served: bool = False) -> tuple["Restarts", float | None]:
        """The new count, and after how many seconds it starts again; None: it keeps failing, give up.

        A wrong setting stays wrong, however long it took to find (a model may load for minutes); else a child
        that ran for HEALTHY_SECONDS comes back at once, whatever killed it. A stack that has `served` is not
        given up: what it holds for others goes on when the child stays, and a request that kills it is found.
        """
        if code == USAGE:
            return self, None
        if lived >= HEALTHY_SECONDS:
            return Restarts(), _FIRST_PAUSE
        deaths = self.quick_deaths + 1
        if deaths >= MOST_QUICK_DEATHS and not served:
            return replace(self, quick_deaths=deaths), None
        return replace(self, quick_deaths=deaths), min(_FIRST_PAUSE * 4 ** (deaths - 1), _LONGEST_PAUSE)
