"""Which replica runs a request: what each holds, and when it would be done."""

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import takewhile
from math import inf
from typing import NamedTuple

from pillion.admission.limits import longest, longest_prompt, need
from pillion.admission.line import EntryId, Waiting, entry_id
from pillion.admission.predict import Server
from pillion.admission.prefixes import Prefixes, Suffixes
from pillion.contracts.entries import Facts, Heartbeat, Request

FRESH = 3.0  # seconds; a replica speaks at least every second
FORGET = 600.0  # seconds after which a silent replica's model is no longer known
LEAST_CREDIT = 0.25  # seconds of prefill that keep a replica busy from heartbeat to heartbeat
SPARE = 8  # sequences that may wait at a replica, at least: they keep it busy from heartbeat to heartbeat
_REMEMBERED = 4096  # requests whose last replica is known
_UNHEARD = Server(0.0, 0, 0, 0, 0.0, 0.0)


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
    load: int = 0  # prompt tokens that it holds and has not computed
    held: int = 0  # sequences that it has, running or not
    server: Server = _UNHEARD  # as forecasts see it

    def count(self, keep_pace: bool) -> None:
        """These three anew: what it told, or what was sent, is other than before."""
        beat, sent = self.beat, self.sent.values()
        self.load = beat.uncomputed + sum([each.tokens for each in sent])
        self.held = beat.running + beat.waiting + sum([each.sequences for each in sent])
        seats = beat.seats if keep_pace else 0
        self.server = Server(
            beat.prefill_rate, self.load, seats, self.held, beat.step_seconds, beat.idle_rate
        )

    @property
    def fingerprint(self) -> str:
        return self.facts.fingerprint if self.facts is not None else ""

    @property
    def kind(self) -> "Kind | None":
        facts = self.facts
        if facts is None:
            return None
        return Kind(facts.model, longest(facts), longest_prompt(facts), facts.fingerprint, facts.block_size)

    def has_room(self, tokens: int, seconds: float) -> bool:
        """By credit, of so many seconds at most; and one request always where it has nothing to compute.

        Never while as many sequences wait there as can run: it knows no shares, and takes them as they came.
        """
        load, beat, facts = self.load, self.beat, self.facts
        if facts is not None and self.held >= facts.max_num_seqs + max(facts.max_num_seqs, SPARE):
            return False
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


class Kind(NamedTuple):
    """What decides whether a replica can run a request: those of one kind are alike, and looked at as one."""

    model: str
    longest: int  # tokens of a sequence
    longest_prompt: int  # of which no output is wanted
    fingerprint: str
    block_size: int


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
        self._kinds: dict[Kind, set[str]] = {}
        self._seen: OrderedDict[str, None] = OrderedDict()  # by when, the longest ago first
        self._able: OrderedDict[str, None] = OrderedDict()  # said that they are ready; the same
        self._settled: dict[tuple[str, str], bool] = {}  # while nothing has changed that it depends on
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
        news = beat.facts is not None and beat.facts != known.facts
        if news or beat.generation != known.beat.generation or not known.heard:
            self._settled.clear()
        known.beat, known.seen = beat, now
        if live:
            known.heard = now
        known.count(self._keep_pace)
        if news:
            self._sort(known, beat.facts)
        name = beat.replica
        self._seen[name] = None
        self._seen.move_to_end(name)
        self._able.pop(name, None)
        if live and beat.state == "ready" and known.facts is not None:
            self._able[name] = None
        return news

    def _sort(self, replica: Replica, facts: Facts | None) -> None:
        """It has these facts from now on."""
        name = replica.beat.replica
        if (kind := replica.kind) is not None:
            self._kinds[kind].discard(name)
            if not self._kinds[kind]:
                del self._kinds[kind]
        replica.facts = facts
        if (kind := replica.kind) is not None:
            self._kinds.setdefault(kind, set()).add(name)

    def _forget(self, name: str) -> None:
        self._sort(self._replicas.pop(name), None)
        self._settled.clear()
        del self._seen[name]
        self._able.pop(name, None)

    def gone(self, name: str) -> None:
        """What it held was taken back. A heartbeat makes it known again."""
        if name in self._replicas:
            self._forget(name)
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
        key = model, generation
        if key not in self._settled:
            self._settled[key] = all(
                replica.beat.generation == generation
                for replica in self._replicas.values()
                if replica.heard and (replica.facts is None or replica.facts.model == model)
            )
        return self._settled[key]

    def forget(self, now: float) -> None:
        while self._seen and now - self._replicas[name := next(iter(self._seen))].seen > FORGET:
            self._forget(name)

    def sending(self, waiting: Waiting, name: str) -> None:
        """Counts what is being handed over, at once."""
        replica = self._replicas[name]
        replica.sent[waiting.entry] = Sent(waiting.tokens, waiting.choices, waiting.output)
        replica.count(self._keep_pace)
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
            replica.count(self._keep_pace)
        else:
            replica.sent[source].entry = entry_id(entry)

    def models(self) -> set[str]:
        return {replica.facts.model for replica in self._replicas.values() if replica.facts is not None}

    def all_told(self) -> bool:
        """Whether there are replicas and the model of each is known: only then is another model unknown."""
        return bool(self._replicas) and all(replica.facts is not None for replica in self._replicas.values())

    def facts(self, model: str) -> list[Facts]:
        """Of the model's replicas, ready or not: one of each kind."""
        some = (
            self._replicas[next(iter(names))] for kind, names in self._kinds.items() if kind.model == model
        )
        return [replica.facts for replica in some if replica.facts is not None]

    def ready(self, now: float) -> set[str]:
        """A set of the caller's own."""
        silent = takewhile(lambda name: now - self._replicas[name].heard > FRESH, self._able)
        return set(self._able).difference(silent)

    def rate(self, model: str, now: float) -> float:
        """Prompt tokens a second that the model's ready replicas compute."""
        replicas = (self._replicas[name] for name in self.ready(now))
        return sum(r.beat.prefill_rate for r in replicas if r.facts is not None and r.facts.model == model)

    def able(self, request: Request, among: set[str]) -> set[str]:
        """Those of the request's model that are large enough for it.

        A request that comes again goes where it went before, while that replica lives: its prefix may be held
        there. Else where the same bits are computed.
        """
        needed, prompts = need(request), request.max_tokens == 0
        able, same = set[str](), set[str]()
        for kind, names in self._kinds.items():
            most = kind.longest_prompt if prompts else kind.longest
            if kind.model == request.model and needed <= most:
                here = names & among
                able |= here
                if kind.fingerprint == request.fingerprint:
                    same |= here
        before = self._ran_at.get(request.id)
        return {before} if before in able else same or able

    def ran(self, request: str) -> bool:
        """Whether it went on before, as far as is remembered."""
        return self._ran_at.get(request) is not None

    def servers(self, request: Request, now: float) -> list[Server]:
        """The ready ones that could run it, as forecasts see them."""
        return [self._replicas[name].server for name in sorted(self.able(request, self.ready(now)))]

    def suffix(self, request: Request, now: float) -> int | None:
        """The fewest prompt tokens that a ready replica would have to compute; None where there is none."""
        able = self.able(request, self.ready(now))
        found: list[int] = []
        for kind, names in self._kinds.items():
            if kind.model == request.model and (here := names & able):
                look = self._prefixes.look(request, kind.block_size)
                holders = here & look.held.keys()
                found += map(look.at, holders)
                if len(holders) < len(here):
                    found.append(look.whole)
        return min(found, default=None)

    def best(self, waiting: Waiting, among: set[str]) -> str | None:
        """The one with room that would have computed the prompt first; None where none has room.

        Blocks that were last computed there are counted as if they were cached. What has to be computed
        counts twice, since it also takes from those who come later: a prefix is worth a little waiting.
        """
        tokens, seconds, keep = waiting.tokens, self._credit_seconds, self._keep_pace
        open_ = [
            (name, replica)
            for name in among
            if (replica := self._replicas[name]).has_room(tokens, seconds)
            and (not keep or replica.keeps_pace(waiting, self.output))
        ]
        if len(open_) < 2:
            return open_[0][0] if open_ else None
        # A new one is taken to be as fast as the others until it has measured itself.
        guess = max([replica.beat.prefill_rate for _, replica in open_]) or 1.0
        looks: dict[int, Suffixes] = {}
        first, chosen = inf, ""
        for name, replica in open_:
            assert replica.facts is not None
            size = replica.facts.block_size
            if size not in looks:
                looks[size] = self._prefixes.look(waiting.request, size)
            finish = (replica.load + 2 * looks[size].at(name)) / (replica.beat.prefill_rate or guess)
            if finish < first or (finish == first and name < chosen):
                first, chosen = finish, name
        return chosen
