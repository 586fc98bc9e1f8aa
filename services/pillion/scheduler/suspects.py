"""Who is to blame for steps that fail: who was in several of them runs alone, and shows it there."""

from .flights import Flight
from .sequence import Sequence, State

SUSPECT = 2  # failed steps without progress after which a sequence runs alone, to tell it from its neighbours
HOPELESS = SUSPECT + 2  # failed steps, the last two alone, after which a sequence is at fault


class Suspects(list[Sequence]):
    """Each of them runs alone until it has come further."""

    def blame(self, named: list[Sequence]) -> list[Sequence]:
        """A step failed that named these. Returns those that are at fault: they failed alone as well."""
        guilty = []
        for sequence in named:
            if sequence.state is State.ENDED:
                continue
            sequence.failures += 1
            if sequence.failures >= HOPELESS:
                guilty.append(sequence)
            elif sequence.failures == SUSPECT:
                self.append(sequence)
        return guilty

    def absolve(self, flight: Flight) -> None:
        """A step succeeded. Who came further than ever before is above suspicion.

        Further, since a sequence that fails behind its first chunk succeeds in that one each time.
        """
        for sequence, end in zip(flight.rows, flight.ends, strict=True):
            if end > sequence.reached:
                sequence.reached = end
                if sequence.failures >= SUSPECT:
                    self.forget(sequence)
                sequence.failures = 0

    def forget(self, sequence: Sequence) -> None:
        if sequence in self:
            self.remove(sequence)
