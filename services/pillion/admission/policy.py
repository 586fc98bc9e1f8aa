"""Admission's decisions, pure: events in, actions out. Times are seconds since the epoch."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pillion.admission import limits
from pillion.admission.limits import fits
from pillion.admission.line import Line, Waiting, prompt_tokens
from pillion.admission.predict import Correction, Forecast, forecast
from pillion.admission.route import Replicas
from pillion.admission.tenants import Tenants, Unreadable
from pillion.config import Config, TenantLimits, parse_limits
from pillion.contracts.entries import Facts, Heartbeat, Refusal, Request, Usage

# --- events ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrived:
    """An entry was read, or taken over from a predecessor. `cancelled`: a tombstone was found."""

    request: Request
    entry: str
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Cancelled:
    """`choice` None ends all choices of the request. `park`: without a word, and no life above this one."""

    request: str
    choice: int | None = None
    park: bool = False
    life: int = 0


@dataclass(frozen=True, slots=True)
class Heard:
    """A heartbeat. Not `live`: the last one of a replica, left in Redis, of unknown age."""

    beat: Heartbeat
    live: bool = True


@dataclass(frozen=True, slots=True)
class Forwarded:
    """The end of a `Forward`: the entry `source` went on as `entry`; None: it had gone on before."""

    source: str
    replica: str
    entry: str | None


@dataclass(frozen=True, slots=True)
class Reported:
    """A word of the `usage` stream, with its entry id."""

    usage: Usage
    entry: str


@dataclass(frozen=True, slots=True)
class Returned:
    """A `Forward` could not be done; the request waits again."""

    waiting: Waiting
    replica: str


@dataclass(frozen=True, slots=True)
class Restored:
    """What waits has been put back into Redis, in these entries by request."""

    entries: dict[str, str]


@dataclass(frozen=True, slots=True)
class Generation:
    """Which data Redis holds ("": not known). Nothing goes on before every replica has put back what it runs.

    `quiet`: the data is so young that there may be replicas that nobody has heard of yet.
    """

    name: str
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class Gone:
    """What the replica held was taken back."""

    replica: str


@dataclass(frozen=True, slots=True)
class Woken:
    """The time asked for by `wake_at` has come."""


LEVELS = ("high", "normal", "low")
"""Priorities below, at and above 0."""

QUIET = 1.5  # seconds; a replica speaks at least every second

Event = Arrived | Cancelled | Heard | Forwarded | Reported | Returned | Restored | Generation | Gone | Woken

# --- actions ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Forward:
    """Hand the entry over to the replica; answer with `Forwarded`."""

    waiting: Waiting
    replica: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Settle the entry with a refusal. `reason` is the metric's label."""

    waiting: Waiting
    refusal: Refusal
    reason: str


@dataclass(frozen=True, slots=True)
class End:
    """Settle the entry of a cancelled request with the last item of each choice; a parked one gets none."""

    waiting: Waiting
    park: bool = False


@dataclass(frozen=True, slots=True)
class Drop:
    """The same request stands in a later entry; this one ends without a word."""

    entry: str


@dataclass(frozen=True, slots=True)
class CameTrue:
    """A request has its first token, `came` seconds after its arrival, where `predicted` were predicted."""

    predicted: float
    came: float


Action = Forward | Refuse | End | Drop | CameTrue


class Policy:
    """Holds the line of waiting requests, the tenants' accounts, and what is known of the replicas.

    Whoever is first in line is served first: a replica that it could run on takes nobody behind it. So a
    long prompt is not overtaken by short ones without end, and a model without room blocks no other.

    What was let in once is not judged again, whoever submits it again.
    """

    def __init__(
        self,
        max_waiting: int,
        ageing: float,
        slo_ttft: float | None = None,
        tenants: Tenants | None = None,
    ) -> None:
        self.max_waiting = max_waiting
        self.tenants = Tenants(TenantLimits(), {}) if tenants is None else tenants
        self.line = Line(ageing, self.tenants.shares)
        self.replicas = Replicas(slo_ttft)
        self._slo_ttft = slo_ttft
        self._correction = Correction()
        self._generation: str = ""
        self._quiet_until = 0.0
        # The replicas that were ready when nobody found room, while only heartbeats have come since.
        self._tried: set[str] | None = None

    def handle(self, event: Event, now: float) -> list[Action]:
        actions = self._handle(event, now)
        for action in actions:
            if isinstance(action, Refuse | End):
                self.tenants.release(action.waiting.request.id, now)
        return actions

    def restore(self, accounts: Mapping[str, bytes], reserved: Mapping[str, bytes]) -> list[Unreadable]:
        """Takes over what a predecessor kept of its tenants; tells what could not be read."""
        aside = self.tenants.restore(accounts, reserved)
        self.replicas.output = self.tenants.output
        return aside

    def _handle(self, event: Event, now: float) -> list[Action]:
        if not isinstance(event, Heard):
            self._tried = None
        match event:
            case Arrived():
                return self._arrived(event, now)
            case Cancelled():
                return self._cancelled(event)
            case Heard():
                return self._heard(event, now)
            case Forwarded():
                self.replicas.sent(event.source, event.replica, event.entry)
                return []
            case Reported():
                return self._reported(event, now)
            case Returned(waiting, replica):
                self.replicas.sent(waiting.entry, replica, None)
                if self.line.get(waiting.request.id) is not None:
                    return [Drop(waiting.entry)]  # submitted again meanwhile
                self.line.add(waiting)
                return []
            case Restored(entries):
                for request, entry in entries.items():
                    self.line.moved(request, entry)
                return []
            case Generation(name, quiet):
                self._generation = name
                self._quiet_until = now + QUIET if quiet else 0.0
                return self._place(now)
            case Gone(replica):
                self.replicas.gone(replica)
                return self._place(now)
            case Woken():
                return self._expire(now) + self._place(now)

    @property
    def wake_at(self) -> float | None:
        """The earliest deadline of those that wait, and when they may go on."""
        times = [w.request.deadline for w in self.line if w.request.deadline is not None]
        if self._quiet_until and len(self.line):
            times.append(self._quiet_until)
        return min(times, default=None)

    def waiting(self) -> Counter[str]:
        """How many wait, by level of priority."""
        return Counter(_level(waiting.request.priority) for waiting in self.line)

    def _arrived(self, event: Arrived, now: float) -> list[Action]:
        request = event.request
        actions: list[Action] = []
        known = self.line.get(request.id)
        if known is not None and known.entry == event.entry:
            return []  # put back after a loss, and read again
        if known is not None:
            # Submitted again after a loss that was none, or was one: the later entry is surely there.
            actions.append(Drop(self.line.remove(request.id).entry))
        tokens = prompt_tokens(request)
        waiting = Waiting(request, event.entry, now, tokens, tokens, self.tenants.expected(request))
        if event.cancelled:
            return [*actions, End(waiting)]
        refusal = self._refusal(waiting, now)
        if refusal is not None:
            return [*actions, refusal]
        waiting.suffix = self.replicas.suffix(request, now) or tokens
        if request.id not in self.tenants:
            refusal = self._let_in(waiting, now)
            if refusal is not None:
                return [*actions, refusal]
        self.line.add(waiting)
        actions += self._place(now)
        stays = self.line.get(request.id) is waiting
        if stays and len(self.line) > self.max_waiting and not request.resumed:
            # A tenant with few in line is not kept out by one with many; what ran before is not put out.
            victim = self.line.latest_of_most(request.tenant) or waiting
            if victim.request.resumed:
                victim = waiting
            self.line.remove(victim.request.id)
            rate = self.replicas.rate(request.model, now)
            told = limits.queue_full(victim.request, len(self.line), self.line.tokens, rate)
            actions.append(Refuse(victim, told, "queue_full"))
        return actions

    def _let_in(self, waiting: Waiting, now: float) -> Refuse | None:
        """Sets aside what the request needs, or says why it must come again later."""
        request = waiting.request
        again = request.resumed or request.life > 0 or self.replicas.ran(request.id)
        short = None if again else self.tenants.short(waiting, now)
        if short is not None:
            told = limits.over_limit(request, short, self.tenants.rates(request.tenant, now))
            return Refuse(waiting, told, told.code or "")
        servers = self.replicas.servers(request, now)
        seen = forecast(self.line.ahead(waiting), _first_suffix(waiting), servers, self.replicas.output)
        refusal = None if again or seen is None else self._too_late(waiting, seen, now)
        if refusal is None:
            gone = max(now - request.arrival, 0.0)
            self.tenants.reserve(waiting, now, None if again or seen is None else gone + seen.ttft)
        return refusal

    def _too_late(self, waiting: Waiting, seen: Forecast, now: float) -> Refuse | None:
        """Whether its first token would come too late, as far as can be seen."""
        request, factor = waiting.request, self._correction.factor
        told = None
        if self._slo_ttft is not None:
            left = self._slo_ttft - max(now - request.arrival, 0.0)
            excess = seen.excess(left, factor)
            if excess:
                told = limits.ttft_missed(request, factor * seen.ttft, self._slo_ttft, excess)
        if told is None and request.deadline is not None:
            left = request.deadline - now
            excess = seen.excess(left, factor)
            if excess:
                told = limits.deadline_missed(request, factor * seen.ttft, left, excess)
        return None if told is None else Refuse(waiting, told, told.code or "")

    def _reported(self, event: Reported, now: float) -> list[Action]:
        actions: list[Action] = []
        for request, came in event.usage.first:
            predicted = self.tenants.first(request)
            if predicted is not None:
                actions.append(CameTrue(predicted, came))
                # What is far from the target is no matter, and mostly made of other times than these.
                if self._slo_ttft is not None and predicted >= self._slo_ttft / 4:
                    self._correction.learn(predicted, came)
        for spent in event.usage.ended:
            self.tenants.ended(spent, event.entry, now)
        self.replicas.output = self.tenants.output
        return actions

    def _cancelled(self, event: Cancelled) -> list[Action]:
        waiting = self.line.get(event.request)
        if waiting is None:
            return []  # it runs, or is over
        if event.park and waiting.request.life > event.life:
            return []  # meant for an earlier life
        if event.choice is not None:
            waiting.cancelled.add(event.choice)
            if len(waiting.cancelled) < waiting.choices:
                return []
        return [End(self.line.remove(event.request), event.park)]

    def _heard(self, event: Heard, now: float) -> list[Action]:
        self.replicas.forget(now)
        if self.tenants.expire(now):
            self._tried = None  # shares changed, and with them the order
        if not self.replicas.hear(event.beat, now, event.live):
            return self._place(now, event.beat.replica)
        # New facts: what waited for them may be refused now.
        return self._refuse_all(lambda waiting: self._refusal(waiting, now)) + self._place(now)

    def _expire(self, now: float) -> list[Action]:
        return self._refuse_all(lambda waiting: _late(waiting, now))

    def _refuse_all(self, judge: Callable[[Waiting], Refuse | None]) -> list[Action]:
        refusals: list[Action] = []
        for waiting in self.line:
            refusal = judge(waiting)
            if refusal is not None:
                self.line.remove(waiting.request.id)
                refusals.append(refusal)
        return refusals

    def _refusal(self, waiting: Waiting, now: float) -> Refuse | None:
        """Why the request will never run, as far as is known; None lets it wait."""
        request = waiting.request
        told = limits.malformed(request)
        if told is not None:
            return Refuse(waiting, told, "invalid")
        late = _late(waiting, now)
        if late is not None:
            return late
        facts: list[Facts] = self.replicas.facts(request.model)
        if facts and not any(fits(request, each) for each in facts):
            return Refuse(waiting, limits.too_long(request, facts), "too_long")
        if not facts and self.replicas.all_told() and not request.resumed:
            return Refuse(waiting, limits.unknown_model(request, self.replicas.models()), "model_not_found")
        return None

    def _place(self, now: float, heard: str | None = None) -> list[Action]:
        """`heard`: who alone has told news, so that nobody has room elsewhere who had none before."""
        tried, self._tried = self._tried, None
        if not len(self.line) or now < self._quiet_until:
            return []
        self._quiet_until = 0.0
        free = self.replicas.ready(now)
        only = {heard} if heard is not None and tried == free else None
        ready, settled = set(free), True
        forwards: list[Action] = []
        for waiting in self.line:
            if not free:
                break
            if not self.replicas.settled(waiting.request.model, self._generation):
                settled = False
                continue
            able = self.replicas.able(waiting.request, free)
            replica = self.replicas.best(waiting, able if only is None else able & only)
            if replica is None:
                free -= able  # they are kept for this one
                continue
            self.replicas.sending(self.line.remove(waiting.request.id), replica)
            self.tenants.go(waiting.request.id)
            forwards.append(Forward(waiting, replica))
            only = None  # what was kept for this one may be for those behind it
        if settled and not forwards:  # who was served counts for other shares, and the line's order
            self._tried = ready
        return forwards


def configured(config: Config) -> Policy:
    """Raises ConfigError for a tenant's limits that are none."""
    settings = config.admission
    limits = TenantLimits(settings.tenant_rpm, settings.tenant_tpm, settings.tenant_concurrency)
    return Policy(
        settings.max_waiting,
        config.scheduler.priority_ageing,
        settings.slo_ttft,
        Tenants(limits, parse_limits(settings.tenant_limits, limits)),
    )


def _first_suffix(waiting: Waiting) -> int:
    """Prompt tokens to compute before its first token: those of its first choice."""
    return min(waiting.suffix, len(waiting.request.prompts[0]))


def _late(waiting: Waiting, now: float) -> Refuse | None:
    deadline = waiting.request.deadline
    if deadline is None or now < deadline:
        return None
    return Refuse(waiting, limits.too_late(waiting.request), "deadline")


def _level(priority: int) -> str:
    return "normal" if priority == 0 else "high" if priority < 0 else "low"
