"""What stands before the replicas: nothing, or the real admission policy with its routing."""

from collections.abc import Callable, Iterator, Sequence
from itertools import count

from pillion.admission.policy import Action, Arrived, Forward, Forwarded, Heard, Refuse, Reported, configured
from pillion.config import Config
from pillion.contracts.entries import Heartbeat, Refusal, Request, Spent, Tokens, Usage
from pillion.scheduler.beat import LONGEST, SHORTEST, heartbeat
from pillion.scheduler.messages import Plan

from .clock import Clock
from .executor import Ran
from .replica import Listener, Replica
from .stages import Passage


class Entries:
    """Ids as Redis gives them: each later than the one before, in whatever stream."""

    def __init__(self) -> None:
        self._numbers: Iterator[int] = count(1)

    def next(self) -> str:
        return f"0-{next(self._numbers)}"


class Beating:
    """One replica's heartbeats: on change, but not more often than real ones, and never seldomer."""

    def __init__(
        self, replica: Replica, credit_seconds: float, clock: Clock, heard: Callable[[Heartbeat], None]
    ) -> None:
        self.last_entry = "0-0"
        self._replica = replica
        self._credit_seconds = credit_seconds
        self._clock = clock
        self._heard = heard
        self._changed = False
        self._rests = False  # it has just beaten
        self._beats = 0

    def changed(self) -> None:
        if not self._changed and not self._rests:
            self._clock.at(self._clock.now, self.beat, self._beats)
        self._changed = True

    def beat(self, number: int) -> None:
        """`number`: how many there were when this one was asked for; a later one was as good."""
        if number != self._beats:
            return
        self._beats += 1
        self._changed, self._rests = False, True
        replica = self._replica
        stands = Heartbeat(
            replica.name, epoch=1, state="ready", facts=replica.facts, last_entry=self.last_entry
        )
        told = heartbeat(stands, replica.core.snapshot(self._clock.now), self._credit_seconds)
        self._clock.at(self._clock.now + SHORTEST, self._rested)
        self._heard(told)

    def _rested(self) -> None:
        self._rests = False
        wait = 0.0 if self._changed else LONGEST - SHORTEST
        self._clock.at(self._clock.now + wait, self.beat, self._beats)


class Admitted:
    """The policy's events and actions, carried out at once. A listener that tells its own."""

    def __init__(self, config: Config, clock: Clock, listener: Listener) -> None:
        """Raises ConfigError for a tenant's limits that are none."""
        self._policy = configured(config)
        self._credit_seconds = config.admission.credit_seconds
        self._clock = clock
        self._listener = listener
        self._entries = Entries()
        self._arrivals: dict[str, tuple[float, int]] = {}  # of what runs: when, and its prompt's tokens
        self._replicas: dict[str, Replica] = {}
        self._beating: dict[str, Beating] = {}

    def add(self, replica: Replica) -> None:
        """It beats from the first word that it gets."""
        self._replicas[replica.name] = replica
        self._beating[replica.name] = Beating(replica, self._credit_seconds, self._clock, self.heard)

    def __len__(self) -> int:
        """Requests that wait here."""
        return len(self._policy.line)

    def submit(self, request: Request) -> None:
        self._act(self._policy.handle(Arrived(request, self._entries.next()), self._clock.now))

    def heard(self, beat: Heartbeat) -> None:
        self._act(self._policy.handle(Heard(beat), self._clock.now))

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Forward(waiting, name):
                    entry, request = self._entries.next(), waiting.request
                    self._arrivals[request.id] = request.arrival, len(request.prompts[0])
                    self._beating[name].last_entry = entry
                    self._replicas[name].submit(request)
                    self._policy.handle(Forwarded(waiting.entry, name, entry), self._clock.now)
                case Refuse(_, refusal):
                    self._listener.refused(refusal, self._clock.now)

    # --- as a listener -----------------------------------------------------------------------------

    def ran(self, replica: str, plan: Plan, done: Ran, passage: Passage) -> None:
        self._listener.ran(replica, plan, done, passage)

    def brought(self, replica: str, items: Sequence[Tokens], finished: Sequence[str], at: float) -> None:
        now = self._clock.now
        first = tuple(
            (item.request, max(now - self._arrivals[item.request][0], 0.0))
            for item in items
            if not item.position and item.tokens
        )
        self._listener.brought(replica, items, finished, at)
        ended = tuple(self._spent(item) for item in items if item.finish)
        if first or ended:
            usage = Usage(replica, first, ended)
            self._act(self._policy.handle(Reported(usage, self._entries.next()), now))

    def changed(self, replica: str) -> None:
        self._beating[replica].changed()

    def _spent(self, item: Tokens) -> Spent:
        _, prompt = self._arrivals.pop(item.request)
        return Spent(item.request, max(prompt - item.cached, 0), item.position + len(item.tokens))

    def refused(self, refusal: Refusal, at: float) -> None:
        self._arrivals.pop(refusal.request, None)
        self._listener.refused(refusal, at)
