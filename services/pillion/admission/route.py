"""Which replica runs a request: what each holds, and when it would be done."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from pillion.admission.limits import longest, need
from pillion.admission.line import EntryId, Waiting, entry_id, prompt_tokens
from pillion.admission.predict import Server
from pillion.admission.prefixes import Prefixes
from pillion.contracts.entries import Facts, Heartbeat, Request

FRESH = 3.0  # seconds; a replica speaks at least every second
FORGET = 600.0  # seconds after which a silent replica's model is no longer known
LEAST_CREDIT = 0.25  # seconds of prefill that keep a replica busy from heartbeat to heartbeat
_REMEMBERED = 4096  # requests whose last replica is known


@dataclass(slots=True)
class Sent:
    """Forwarded, and not yet counted in a heartbeat. `entry` is unknown until the hand-over is confirmed."""

    tokens: int
    sequences: int
    output: float  # expected tokens
    entry: EntryId | None = None


@dataclass(slots=True)
class Replica:
    """A replica as its last heartbeat told, plus what was sent since."""

    beat: Heartbeat
    heard: float  # seconds since the epoch; 0: never, known by what it left in Redis only
    seen: float  # as `heard`, or when it was found in Redis
    facts: Facts | None = None  # the last ones told: a replica without executor still has its model
    sent: dict[str, Sent] = field(default_factory=dict)  # by the entry that it came in

    @property
    def fingerprint(self) -> str:
        return self.facts.fingerprint if self.facts is not None else ""

    @property
    def load(self) -> int:
        """Prompt tokens that it holds and has not computed."""
        return self.beat.uncomputed + sum(sent.tokens for sent in self.sent.values())

    def ready(self, now: float) -> bool:
        return self.beat.state == "ready" and self.facts is not None and now - self.heard <= FRESH

    @property
    def held(self) -> int:
        """Sequences that it has, running or not."""
        return self.beat.running + self.beat.waiting + sum(sent.sequences for sent in self.sent.values())

    def has_room(self, tokens: int, seconds: float) -> bool:
        """By credit, of so many seconds at most; and one request always where it has nothing to compute."""
        load, beat = self.load, self.beat
        credit = min(beat.credit, seconds * beat.prefill_rate) if beat.prefill_rate else beat.credit
        return load == 0 or load + tokens <= credit

    def keeps_pace(self, waiting: Waiting, output: float) -> bool:
        """Whether its sequences keep their time between tokens with these beside them: none more than it has
        seats for, and none preempted once all have grown. `output`: mean tokens of a sequence.
        """
        held, beat, facts = self.held, self.beat, self.facts
        if not held or facts is None:
            return True
        if beat.seats and held + waiting.choices > beat.seats:
            return False
        positions = (facts.num_blocks - 1) * facts.block_size
        # Those that run have on average half of their output before them.
        growth = output * (beat.running / 2 + beat.waiting) + sum(sent.output for sent in self.sent.values())
        return beat.kv_usage * positions + self.load + growth + waiting.suffix + waiting.output <= positions


class Recent:
    """Where the latest few thousand requests went."""

    def __init__(self) -> None:
        self._replica: OrderedDict[str, str] = OrderedDict()

    def get(self, key: str) -> str | None:
        return self._replica.get(key)

    def note(self, key: str, replica: str) -> None:
        self._replica[key] = replica
        self._replica.move_to_end(key)
        if len(self._replica) > _REMEMBERED:
            self._replica.popitem(last=False)

    def forget(self, replica: str) -> None:
        for key in [key for key, name in self._replica.items() if name == replica]:
            del self._replica[key]


class Replicas:
    """All that were heard of, and where prefixes went."""

    def __init__(self, slo_ttft: float | None = None) -> None:
        """With a target credit is no more than a quarter of it, or what is let in later could not go first;
        and credit alone is no room, see Replica.keeps_pace.
        """
        self.output = 0.0  # mean output tokens of a sequence
        self._keep_pace = slo_ttft is not None
        self._credit_seconds = inf if slo_ttft is None else max(slo_ttft / 4, LEAST_CREDIT)
        self._replicas: dict[str, Replica] = {}
        self._prefixes = Prefixes()
        self._ran_at = Recent()

    def __len__(self) -> int:
        return len(self._replicas)

    def __getitem__(self, name: str) -> Replica:
        return self._replicas[name]

    def hear(self, beat: Heartbeat, now: float, live: bool = True) -> bool:
        """Takes a heartbeat in; answers whether its facts are news. Not `live`: its age is unknown."""
        known = self._replicas.get(beat.replica)
        if known is None:
            known = self._replicas[beat.replica] = Replica(beat, heard=0.0, seen=now)
        elif beat.epoch < known.beat.epoch or not live:
            return False
        if beat.epoch != known.beat.epoch:
            # A new scheduler counts what it takes over; what is on its way keeps counting.
            known.sent = {source: sent for source, sent in known.sent.items() if sent.entry is None}
        consumed = entry_id(beat.last_entry)
        for source in [
            source for source, sent in known.sent.items() if sent.entry is not None and sent.entry <= consumed
        ]:
            del known.sent[source]
        known.beat, known.seen = beat, now
        if live:
            known.heard = now
        news = beat.facts is not None and beat.facts != known.facts
        if news:
            known.facts = beat.facts
        return news

    def gone(self, name: str) -> None:
        """What it held was taken back. A heartbeat makes it known again."""
        self._replicas.pop(name, None)
        self._ran_at.forget(name)
        self._prefixes.forget(name)

    def suspects(self, now: float) -> dict[str, bool]:
        """Replicas that may be dead, silent for a while, and whether they said themselves that they go."""
        return {
            name: replica.beat.state == "gone"
            for name, replica in self._replicas.items()
            if replica.beat.state == "gone" or now - replica.heard > FRESH
        }

    def heirs(self, name: str, now: float) -> bool:
        """Whether another ready replica has the model of this one."""
        facts = self._replicas[name].facts
        ready = (self._replicas[other].facts for other in self.ready(now) if other != name)
        return facts is not None and any(each is not None and each.model == facts.model for each in ready)

    def settled(self, model: str, generation: str) -> bool:
        """Whether all that was heard of, and may run the model, has told of this generation of the data."""
        return all(
            replica.beat.generation == generation
            for replica in self._replicas.values()
            if replica.heard and (replica.facts is None or replica.facts.model == model)
        )

    def forget(self, now: float) -> None:
        for name in [name for name, replica in self._replicas.items() if now - replica.seen > FORGET]:
            del self._replicas[name]

    def sending(self, waiting: Waiting, name: str) -> None:
        """Counts what is being handed over, at once."""
        replica = self._replicas[name]
        replica.sent[waiting.entry] = Sent(waiting.tokens, waiting.choices, waiting.output)
        self._ran_at.note(waiting.request.id, name)
        if replica.facts is not None:
            self._prefixes.note(waiting.request, replica.facts, name)

    def sent(self, source: str, name: str, entry: str | None) -> None:
        """The hand-over's end; `entry` None: the entry had gone on before."""
        replica = self._replicas.get(name)
        if replica is None or source not in replica.sent:
            return
        if entry is None or entry_id(entry) <= entry_id(replica.beat.last_entry):
            del replica.sent[source]
        else:
            replica.sent[source].entry = entry_id(entry)

    def models(self) -> set[str]:
        return {replica.facts.model for replica in self._replicas.values() if replica.facts is not None}

    def all_told(self) -> bool:
        """Whether there are replicas and the model of each is known: only then is another model unknown."""
        return bool(self._replicas) and all(replica.facts is not None for replica in self._replicas.values())

    def facts(self, model: str) -> list[Facts]:
        """Of all replicas of the model, ready or not."""
        known = (replica.facts for replica in self._replicas.values())
        return [facts for facts in known if facts is not None and facts.model == model]

    def ready(self, now: float) -> set[str]:
        return {name for name, replica in self._replicas.items() if replica.ready(now)}

    def rate(self, model: str, now: float) -> float:
        """Prompt tokens a second that the model's ready replicas compute."""
        replicas = (self._replicas[name] for name in self.ready(now))
        return sum(r.beat.prefill_rate for r in replicas if r.facts is not None and r.facts.model == model)

    def able(self, request: Request, among: set[str]) -> set[str]:
        """Those of the request's model that are large enough for it.

        A request that comes again goes where it went before, while that replica lives: its prefix may be held
        there. Else where the same bits are computed.
        """
        needed = need(request)
        able = {
            name
            for name in among
            if (facts := self._replicas[name].facts) is not None
            and facts.model == request.model
            and needed <= longest(facts)
        }
        before = self._ran_at.get(request.id)
        if before in able:
            return {before}
        same = {name for name in able if self._replicas[name].fingerprint == request.fingerprint}
        return same or able

    def ran(self, request: str) -> bool:
        """Whether it went on before, as far as is remembered."""
        return self._ran_at.get(request) is not None

    def servers(self, request: Request, now: float) -> list[Server]:
        """The ready ones that could run it, as forecasts see them."""
        able = (self._replicas[name] for name in sorted(self.able(request, self.ready(now))))
        return [
            Server(
                rate=replica.beat.prefill_rate,
                load=replica.load,
                seats=replica.beat.seats if self._keep_pace else 0,
                held=replica.held,
                turnover=self.output * replica.beat.step_seconds,
                idle_rate=replica.beat.idle_rate,
            )
            for replica in able
        ]

    def suffix(self, request: Request, now: float) -> int | None:
        """The fewest prompt tokens that a ready replica would have to compute; None where there is none."""
        suffix = self._suffix(request)
        return min(map(suffix, self.able(request, self.ready(now))), default=None)

    def best(self, waiting: Waiting, among: set[str]) -> str | None:
        """The one with room that would have computed the prompt first; None where none has room.

        Blocks that were last computed there are counted as if they were cached. What has to be computed
        counts twice, since it also takes from those who come later: a prefix is worth a little waiting.
        """
        open_ = sorted(name for name in among if self._has_room(waiting, name))
        if len(open_) < 2:
            return open_[0] if open_ else None

        # A new one is taken to be as fast as the others until it has measured itself.
        guess = max(self._replicas[name].beat.prefill_rate for name in open_) or 1.0

        suffix = self._suffix(waiting.request)

        def finish(name: str) -> float:
            replica = self._replicas[name]
            work = replica.load + 2 * suffix(name)
            return work / (replica.beat.prefill_rate or guess)

        return min(open_, key=finish)

    def _has_room(self, waiting: Waiting, name: str) -> bool:
        replica = self._replicas[name]
        if not replica.has_room(waiting.tokens, self._credit_seconds):
            return False
        return not self._keep_pace or replica.keeps_pace(waiting, self.output)

    def _suffix(self, request: Request) -> Callable[[str], int]:
        """How many prompt tokens the replica of a name would have to compute."""
        look = self._prefixes.look(request)

        def suffix(name: str) -> int:
            facts = self._replicas[name].facts
            return prompt_tokens(request) if facts is None else look(facts, name)

        return suffix
