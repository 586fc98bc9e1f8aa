"""The scheduler's core: events in, commands out. It owns the plans in flight and decides when to plan.

Pure: no I/O, no clock, no randomness. The same events at the same times give the same commands, in the
service, in the simulator and in tests.
"""

from dataclasses import dataclass

from pillion.config import Scheduler
from pillion.contracts.entries import Control, Facts, Request, Tokens
from pillion.steptime import StepTime

from . import policies
from .blocks import Pool
from .budget import Budget, limited
from .fitting import most_tokens, refuse
from .flights import Flight, Flights
from .messages import (
    Cancelled,
    Command,
    Compiled,
    Connected,
    Disconnected,
    Event,
    Ordered,
    Plan,
    Refuse,
    RowResult,
    SendPlan,
    Snapshot,
    StepDone,
    StepFailed,
    Submitted,
    WakeAt,
    Woken,
)
from .outbox import Outbox
from .overview import overview
from .plan import Draft
from .prefix import Hash
from .repeat import repeat
from .roster import Counters, Queue, Roster
from .sequence import Change, Sequence, State
from .suspects import Suspects
from .victims import yielding


@dataclass(slots=True)
class Live:
    """A request of which at least one choice has not ended."""

    request: Request
    sequences: list[Sequence]
    left: int  # choices that have not ended


class Core:
    """One replica. Not thread-safe; `now` is in seconds of any clock that does not go back."""

    def __init__(self, settings: Scheduler, hash_block: Hash = hash) -> None:
        """Raises policies.UnknownPolicy."""
        self._configured = self._settings = settings
        self._hash = hash_block
        self._policy = policies.make(settings.policy)
        self._counters = Counters()
        self._requests: dict[str, Live] = {}
        self._waiting = Queue()
        self._suspects = Suspects()
        self._order = 0
        self._facts: Facts | None = None
        self._roster: Roster | None = None  # these two are there while an executor is attached
        self._budget: Budget | None = None
        self._flights = Flights()
        self._step = 0  # the last that was sent
        self._woken_at: float | None = None

    # --- events ------------------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Command]:
        """Takes in what happened and says what to do. Events that name what is gone are ignored."""
        out = Outbox()
        match event:
            case StepDone():
                self._step_done(event, now, out)
            case Submitted():
                self._submitted(event, out)
            case Cancelled():
                self._cancelled(event, out)
            case StepFailed():
                self._step_failed(event, now, out)
            case Connected():
                self._connected(event.facts, event.measured, out)
            case Disconnected():
                self._disconnected(event.orderly, out)
            case Ordered():
                self._ordered(event.word)
            case Compiled():
                self._compiled(event, now)
            case Woken():
                self._woken_at = None
        if self._roster is not None:
            out.compiles = self._roster.grammars.want(self._waiting, now)
        self._plan(now, out)
        commands = out.commands(self._roster.returned if self._roster else 0)
        wake = self._wake(now)
        if wake is not None:
            commands.append(wake)
        return commands

    def _connected(self, facts: Facts, measured: StepTime | None, out: Outbox) -> None:
        if self._roster is not None:
            self._disconnected(True, out)
        settings = self._settings
        pool = Pool(facts.num_blocks, facts.block_size, settings.enable_prefix_caching, self._hash)
        slots = min(settings.max_num_seqs, facts.max_num_seqs)
        self._facts = facts
        self._roster = Roster(
            self._waiting,
            pool,
            slots,
            settings.watermark,
            self._counters,
            self._policy.reserves,
            facts.pp,
            facts.grammars,
        )
        self._flights.attach(facts.pp)
        self._budget = Budget(settings, facts, measured)
        self._step = 0
        for live in list(self._requests.values()):
            self._fit(live, out)

    def _disconnected(self, orderly: bool, out: Outbox) -> None:
        if self._roster is None:
            return
        # Which of the plans it died in is not known: the result of one before may have died with it.
        named = list(dict.fromkeys(sequence for flight in self._flights for sequence in flight.rows))
        self._flights.clear()
        self._woken_at = None
        self._roster.dissolve()
        self._roster = self._budget = self._facts = None
        if not orderly:
            self._counters.executors_lost += 1
            self._blame(named, "the executor was lost", out)

    def _submitted(self, event: Submitted, out: Outbox) -> None:
        request = event.request
        if request.id in self._requests:
            return  # delivered again
        choices = [choice for choice in range(len(request.prompts) * request.n) if choice not in event.ended]
        sequences = [self._sequence(request, choice, event.done.get(choice, ())) for choice in choices]
        if not sequences:
            out.finished.append(request.id)
            return
        live = self._requests[request.id] = Live(request, sequences, len(sequences))
        for sequence in sequences:
            self._waiting.join(sequence)
        self._fit(live, out)

    def _sequence(self, request: Request, choice: int, done: tuple[int, ...]) -> Sequence:
        self._order += 1
        return Sequence(
            request,
            choice,
            done=done,
            max_tokens=request.max_tokens or 1,
            order=self._order,
            ageing=self._settings.priority_ageing,
        )

    def _cancelled(self, event: Cancelled, out: Outbox) -> None:
        live = self._requests.get(event.request)
        if live is None:
            return
        if event.park:
            self._park(live, event.life, out)
            return
        for sequence in live.sequences:
            if sequence.state is not State.ENDED and event.choice in (None, sequence.choice):
                self._finish(sequence, "cancelled", out)

    def _park(self, live: Live, life: int, out: Outbox) -> None:
        """The request leaves without an end. A park that was meant for an earlier life comes too late."""
        if live.request.life > life:
            return
        for sequence in live.sequences:
            if sequence.state is not State.ENDED:
                self._drop(sequence)
        del self._requests[live.request.id]
        out.parked.append(live.request.id)

    def _step_done(self, event: StepDone, now: float, out: Outbox) -> None:
        flight = self._land(event.step, now)
        if flight is None or flight.lost:
            self._counters.late_results += len(event.rows)
            return
        assert self._roster is not None and self._budget is not None
        self._counters.steps += event.steps
        if event.steps:
            # Else there was nothing to do. A stream's gap holds that of each plan that runs beside its own.
            gap = self._flights.stages * event.gap_seconds if flight.pipelined else 0.0
            self._budget.cost.learn(flight.work, event.seconds / event.steps, gap / event.steps)
        self._flights.adjust(flight, now, event.seconds, event.gap_seconds)
        self._suspects.absolve(flight)
        by_incarnation = self._roster.by_incarnation
        for row in event.rows:
            sequence_or_none = by_incarnation.get(row.incarnation)
            if sequence_or_none is None:
                self._counters.late_results += 1
                continue
            if row.prompt_logprobs:
                sequence_or_none.logprobs.append(row.prompt_logprobs)
            if row.tokens or row.finish is not None:
                sequence_or_none.told = now
                self._result(self._roster, sequence_or_none, row, event.step, out)

    def _result(self, roster: Roster, sequence: Sequence, row: RowResult, step: int, out: Outbox) -> None:
        known, new = sequence.tokens, row.tokens
        position = len(known) - sequence.prompt_length
        prompt = None
        if new and sequence.scores:
            prompt = b"".join(sequence.logprobs)
            sequence.logprobs.clear()
        known += new
        computed = len(known) - 1  # the last one's KV is not there
        if sequence.state is State.DECODING and computed % roster.pool.block_size < len(new):
            roster.enter(sequence, computed, step)
        finish = row.finish
        if finish is None and position + len(new) >= sequence.max_tokens:
            finish = "length"
        stop_token = new[-1] if finish == "stop" and new else None
        # By position: this is done for every token.
        out.items.append(
            Tokens(
                sequence.request.id, sequence.choice, position, new, finish, stop_token,
                sequence.cached or 0, row.logprobs, row.error, prompt,
            )
        )  # fmt: skip
        if finish is not None:
            if finish == "error":
                roster.disown(sequence)
            self._end(sequence, out)

    def _step_failed(self, event: StepFailed, now: float, out: Outbox) -> None:
        flight = self._land(event.step, now)
        if flight is None or flight.lost:
            return
        assert self._roster is not None
        self._counters.failed_steps += 1
        for later in self._flights:
            later.lost = True
        self._roster.lose(flight.step)
        self._blame(flight.rows, event.message, out)

    def _land(self, step: int, now: float) -> Flight | None:
        """The oldest plan in flight when it is this step. They return in order."""
        flight = self._flights.land(step, now)
        if flight is not None:
            assert self._roster is not None
            self._roster.returned = step
        return flight

    def _blame(self, named: list[Sequence], message: str, out: Outbox) -> None:
        """A step failed that named these."""
        for sequence in self._suspects.blame(named):
            self._counters.poisonous += 1
            self._finish(sequence, "error", out, f"the step failed each time: {message}")

    def _compiled(self, event: Compiled, now: float) -> None:
        if self._roster is not None:
            self._roster.grammars.compiled(event.place, now)

    def _ordered(self, word: Control) -> None:
        if word.flush and self._roster is not None:
            self._roster.flush()
        if word.limits is not None:
            self._settings = limited(self._configured, word.limits)
            if self._budget is not None:
                self._budget.bound(self._settings)

    # --- life of requests --------------------------------------------------------------------------

    def _fit(self, live: Live, out: Outbox) -> None:
        """Refuses what can never run on this executor; sets how far each choice may go."""
        if self._facts is None:
            return
        refusal = refuse(live.request, self._facts)
        if refusal is not None and not any(sequence.output for sequence in live.sequences):
            for sequence in live.sequences:
                self._drop(sequence)
            del self._requests[live.request.id]
            out.refusals.append(Refuse(refusal, live.request.gateway))
            return
        for sequence in live.sequences:
            if sequence.state is State.ENDED:
                continue
            if refusal is not None:
                self._finish(sequence, "error", out, refusal.message)
                continue
            wanted = live.request.max_tokens
            # The last row of a prompt brings a token, whether it is wanted or not.
            sequence.allow(self.max_model_len - sequence.prompt_length if wanted is None else max(wanted, 1))
            if sequence.output >= sequence.max_tokens:
                self._finish(sequence, "length", out)

    def _finish(self, sequence: Sequence, finish: str, out: Outbox, error: str | None = None) -> None:
        """Ends the sequence by our own decision."""
        out.items.append(
            Tokens(
                request=sequence.request.id,
                choice=sequence.choice,
                position=sequence.output,
                tokens=(),
                finish=finish,
                cached=sequence.cached or 0,
                error=error,
            )
        )
        self._end(sequence, out)

    def _end(self, sequence: Sequence, out: Outbox) -> None:
        self._drop(sequence)
        live = self._requests[sequence.request.id]
        live.left -= 1
        if not live.left:
            del self._requests[sequence.request.id]
            out.finished.append(sequence.request.id)

    def _drop(self, sequence: Sequence) -> None:
        self._suspects.forget(sequence)
        if self._roster is not None:
            self._roster.end(sequence)
        else:
            self._waiting.remove(sequence)
            sequence.change(Change.END)

    # --- plans -------------------------------------------------------------------------------------

    def _plan(self, now: float, out: Outbox) -> None:
        """Sends what is due: the next step as late as is safe, so that arrivals need not wait a step more."""
        while self._due(now):
            plan = self._compose(now)
            if plan is None:
                return
            out.plans.append(SendPlan(plan, self._flights[-1].predicted))

    def _due(self, now: float) -> bool:
        if self._roster is None or self._flights.full:
            return False
        if self._suspects:
            return not self._flights  # alone in the step, and with no other step behind it
        return not self._flights or self._flights[0].lost or now >= self._flights.due

    def _wake(self, now: float) -> WakeAt | None:
        if (
            self._roster is None
            or not self._flights
            or self._flights.full
            or self._suspects
            or self._due(now)
            or self._flights.due == self._woken_at
        ):
            return None
        if not self._requests:
            return None
        self._woken_at = self._flights.due
        return WakeAt(self._woken_at)

    def _compose(self, now: float) -> Plan | None:
        assert self._roster is not None and self._budget is not None
        suspect = self._roster.suspect = next(filter(self._ready, self._suspects), None)
        ahead = max(self._flights.begins - now, 0.0) if self._flights else 0.0
        self._budget.hurry(self._flights.time_left(self._budget.target, self._told(), now))
        while True:
            draft = Draft(self._step + 1)
            allowed = self._policy.compose(self._roster, draft, self._budget)
            if draft.rows:
                break
            running = self._roster.running
            alone = suspect is not None and not suspect.running
            if self._flights or len(running) < (1 if alone else 2):
                return None
            self._roster.preempt(yielding(running, suspect), draft)  # nobody can go on, nothing will return
        if self._roster.stages == 1:  # over several, a plan's steps would wait for each other's tokens
            repeat(draft, self._roster, self._budget, ahead)
        plan = draft.finish(self._roster.releases(), allowed)
        self._step = draft.step
        work = draft.work
        self._flights.append(
            Flight(
                step=draft.step,
                rows=draft.rows,
                ends=draft.ends,
                work=work,
                sent=now,
                predicted=draft.steps * self._budget.cost.predict(work),
                pipelined=self._flights.pipelined(now),
            )
        )
        return plan

    def _ready(self, suspect: Sequence) -> bool:
        """Others do not stand still while its constraint is compiled."""
        assert self._roster is not None
        return suspect.running or self._roster.grammars.ready(suspect)

    def _told(self) -> float | None:
        """When the stream that has waited longest had its last token, of those in no plan in flight."""
        assert self._roster is not None
        returned = self._roster.returned
        return min((s.told for s in self._roster.decoding if s.step <= returned), default=None)

    # --- what it looks like ------------------------------------------------------------------------

    @property
    def max_model_len(self) -> int:
        """Tokens a sequence, prompt and output, that executor and pool can hold; 0 without an executor."""
        return most_tokens(self._facts) if self._facts is not None else 0

    def overdue(self, now: float) -> float:
        """Seconds that the executor is late with the oldest step in flight, or with a constraint; else 0."""
        constraint = self._roster.grammars.overdue(now) if self._roster is not None else 0.0
        return max(self._flights.overdue(now), constraint)

    def snapshot(self, now: float = 0.0) -> Snapshot:
        """`now` is needed for `overdue` only."""
        return overview(
            self._counters,
            self._waiting,
            self._roster,
            self._budget,
            self._policy,
            max_model_len=self.max_model_len,
            in_flight=len(self._flights),
            overdue=self.overdue(now),
            target=self._settings.step_target,
        )

    def check(self) -> None:
        """Raises AssertionError unless every block and slot is where it must be. For tests."""
        if self._roster is not None:
            self._roster.check()
