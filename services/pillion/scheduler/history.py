"""What explains a request's delays: the last steps, and of each live sequence its longest gaps. Pure.

Made from the core's events and commands alone. A step costs a record and a few sums, a token a comparison.
"""

from collections import deque
from dataclasses import dataclass

from pillion.config import Scheduler
from pillion.contracts.entries import Request, Tokens
from pillion.contracts.timeline import FAILED, LOST, PREEMPTED, TAKEN, Timeline

from .memory import GAPS, Choice, Gap, Step, Tenure, since
from .messages import (
    Command,
    Connected,
    Disconnected,
    Event,
    Plan,
    Publish,
    Refuse,
    SendPlan,
    StepDone,
    StepFailed,
    Submitted,
)

STEPS = 1024  # that are remembered
CHUNKS = 16  # steps of a choice's prefill
CHOICES = 4  # of a request, in its timeline


@dataclass(slots=True, eq=False)
class _Live:
    request: Request
    accepted: float
    choices: dict[int, Choice]


class History:
    """Of one replica. Times are those of the core."""

    def __init__(self, settings: Scheduler) -> None:
        self._settings = settings
        self._live: dict[str, _Live] = {}
        self._holders: dict[int, Choice] = {}  # by slot
        self._flights: dict[int, Step] = {}  # by step
        self._steps: deque[Step] = deque(maxlen=STEPS)
        self._serial = 0
        self._waiting = 0
        self._causes = (0, 0, 0)  # steps, while somebody waited, that were full, had no slot, no room
        self._attached: float | None = None  # since when an executor is there
        self._slots = self._tile = 0

    def heard(self, event: Event, now: float, commands: list[Command]) -> None:
        """What happened, and what the core said to it. Requests that end stay until they are closed."""
        match event:
            case StepDone():
                self._returned(event, now)
            case Submitted():
                self._submitted(event, now)
            case StepFailed():
                self._failed(event.step, now)
            case Connected(facts):
                self._detached(now)
                self._attached = now
                self._slots = min(self._settings.max_num_seqs, facts.max_num_seqs)
                self._tile = self._settings.tile or facts.tile
            case Disconnected():
                self._detached(now)
        # What ended comes first: a slot that a plan then releases is else one of a preempted sequence.
        for command in commands:
            if isinstance(command, Publish):
                for item in command.items:
                    self._item(item, now)
                for request in (*command.finished, *command.parked):
                    self._end(request)
            elif isinstance(command, Refuse):
                self._end(command.refusal.request)
                self._live.pop(command.refusal.request, None)
        for command in commands:
            if isinstance(command, SendPlan):
                self._planned(command.plan, command.predicted, now)

    # --- events ------------------------------------------------------------------------------------

    def _submitted(self, event: Submitted, now: float) -> None:
        request = event.request
        if request.id in self._live:
            return
        ahead, running = self._waiting, len(self._holders)
        choices = {
            index: Choice(
                index, len(request.prompts[index // request.n]), len(event.done.get(index, ())), ahead,
                running, self._causes,
            )
            for index in range(len(request.prompts) * request.n)
            if index not in event.ended
        }  # fmt: skip
        self._waiting += len(choices)
        self._live[request.id] = _Live(request, now, choices)

    def _detached(self, now: float) -> None:
        self._attached = None
        self._flights.clear()
        self._leave(list(self._holders), LOST, now)

    def _returned(self, event: StepDone, now: float) -> None:
        step = self._flights.pop(event.step, None)
        if step is not None:
            step.ended, step.seconds, step.idle, step.passes = (
                now,
                event.seconds,
                event.gap_seconds,
                event.steps,
            )
            self._steps.append(step)

    def _failed(self, since: int, now: float) -> None:
        """The steps from this one on are lost, and all that is in them waits again."""
        if since not in self._flights:
            return  # lost already, with one before it
        lost = [number for number in self._flights if number >= since]
        slots = {slot for number in lost for slot in self._flights.pop(number).plan.slots}
        self._leave([slot for slot in slots if slot in self._holders], FAILED, now)

    def _leave(self, slots: list[int], why: str, now: float) -> None:
        for slot in slots:
            choice = self._holders.pop(slot)
            if not choice.ended:
                choice.slot = -1
                choice.tenures[-1].until = self._serial
                choice.mark(why, now)
                choice.preemptions += why is PREEMPTED
                self._waiting += 1

    # --- commands ----------------------------------------------------------------------------------

    def _planned(self, plan: Plan, predicted: float, now: float) -> None:
        self._leave([slot for slot in plan.release if slot in self._holders], PREEMPTED, now)
        for take in plan.take:
            choice = self._live[take.request.id].choices[take.choice]
            self._waiting -= 1
            choice.slot = take.slot
            choice.tenures.append(Tenure(take.slot, self._serial + 1))
            self._holders[take.slot] = choice
            if choice.planned is not None:
                choice.mark(TAKEN, now)
            else:
                choice.planned, choice.causes = now, since(self._causes, choice.causes)
        self._serial += 1
        bare = Plan(
            plan.step,
            (),
            (),
            plan.slots,
            plan.starts,
            plan.counts,
            plan.samples,
            (),
            (),
            plan.decodes,
            plan.budget,
        )  # without what is long: tokens and blocks
        step = self._flights[plan.step] = Step(self._serial, bare, now, predicted, self._waiting)
        for row in range(plan.decodes, len(plan.slots)):
            self._chunk(self._holders[plan.slots[row]], step, plan.starts[row], plan.counts[row])
        if self._waiting:
            full, no_slot, no_room = self._causes
            if len(self._holders) >= self._slots:
                no_slot += 1
            elif plan.tokens + self._tile > plan.budget:
                full += 1
            else:
                no_room += 1
            self._causes = full, no_slot, no_room

    @staticmethod
    def _chunk(choice: Choice, step: Step, start: int, count: int) -> None:
        if choice.marks or choice.tokens:
            choice.recomputed += count
            return
        if not choice.chunks:
            choice.cached = start
        if len(choice.chunks) == CHUNKS:
            choice.chunks.pop()
            choice.more_chunks += 1
        choice.chunks.append((step, count))

    def _item(self, item: Tokens, now: float) -> None:
        live = self._live.get(item.request)
        choice = live.choices.get(item.choice) if live else None
        if choice is None:
            return
        if item.tokens:
            serial = self._steps[-1].serial
            if choice.first is None:
                choice.first = now
            else:
                seconds = now - choice.last
                choice.spans.add(now, seconds)
                if seconds > choice.least:
                    self._gap(choice, item.position, now)
            choice.tokens += len(item.tokens)
            choice.last, choice.serial = now, serial
            if choice.marks:
                choice.marks.clear()
                del choice.tenures[:-1]
        if item.finish is not None:
            self._over(choice)

    def _gap(self, choice: Choice, position: int, now: float) -> None:
        steps: list[tuple[Step, int]] = []
        for step in reversed(self._steps):
            if step.serial <= choice.serial:
                break
            steps.append((step, step.own(choice.tenures)))
        gap = Gap(position, choice.last, now - choice.last, tuple(steps[::-1]), tuple(choice.marks))
        choice.gaps.append(gap)
        choice.gaps.sort(key=lambda each: -each.seconds)
        if len(choice.gaps) > GAPS:
            choice.gaps.pop()
        if len(choice.gaps) == GAPS:
            choice.least = choice.gaps[-1].seconds

    def _end(self, request: str) -> None:
        live = self._live.get(request)
        for choice in live.choices.values() if live else ():
            self._over(choice)

    def _over(self, choice: Choice) -> None:
        if not choice.ended:
            choice.ended = True
            self._waiting -= choice.slot < 0

    # --- what it tells -----------------------------------------------------------------------------

    def close(self, request: str, replica: str, forwarded: float, wall: float) -> Timeline | None:
        """The last word on a request that has ended, of which nothing is kept here."""
        timeline = self.timeline(request, replica, forwarded, wall)
        self._live.pop(request, None)
        return timeline

    def timeline(self, request: str, replica: str, forwarded: float, wall: float) -> Timeline | None:
        """Of a request that is here. `wall`: what makes one of our times seconds since the epoch."""
        live = self._live.get(request)
        if live is None:
            return None
        choices = sorted(live.choices.values(), key=lambda choice: -choice.worst)
        return Timeline(
            request,
            replica,
            live.request.arrival,
            forwarded,
            wall + live.accepted,
            0.0 if self._attached is None else wall + self._attached,
            tuple(choice.seen(wall, self._causes) for choice in choices[:CHOICES]),
            max(len(choices) - CHOICES, 0),
        )
