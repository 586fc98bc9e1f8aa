"""One replica: the real core, an executor that computes nothing, and the ways between them."""

from collections.abc import Sequence
from typing import Protocol

from pillion.contracts.entries import Facts, Refusal, Request, Tokens
from pillion.scheduler.core import Core
from pillion.scheduler.messages import (
    Connected,
    Event,
    Plan,
    Publish,
    Refuse,
    SendPlan,
    StepDone,
    Submitted,
    WakeAt,
    Woken,
)
from pillion.steptime import StepTime, Ways

from .clock import Clock
from .executor import Executor, Ran
from .stages import Passage, Stages


class Listener(Protocol):
    """Whoever wants to know what a replica does."""

    def ran(self, replica: str, plan: Plan, done: Ran, passage: Passage) -> None:
        """A plan was sent; when its steps will begin is known."""
        ...

    def brought(self, replica: str, items: Sequence[Tokens], finished: Sequence[str], at: float) -> None:
        """Clients get these at `at`."""
        ...

    def refused(self, refusal: Refusal, at: float) -> None: ...

    def changed(self, replica: str) -> None:
        """It was told something, and has done what came of it."""
        ...


class Replica:
    """As in the service, one plan waits at the executor while others run, one at each stage."""

    def __init__(
        self,
        name: str,
        core: Core,
        executor: Executor,
        facts: Facts,
        ways: Ways,
        clock: Clock,
        listener: Listener,
        stages: Stages | None = None,
    ) -> None:
        """`stages`: the executor's, as many as the facts have; without them it has one."""
        self.name = name
        self.core = core
        self.facts = facts
        self._executor = executor
        self._ways = ways
        self._clock = clock
        self._listener = listener
        self._stages = stages or Stages()
        self._wake: float | None = None
        self._told = 0.0  # when clients get what the core publishes now

    def connect(self, known: StepTime | None = None) -> None:
        """`known`: the cost model that its scheduler has of it."""
        self.handle(Connected(self.facts, known))

    def submit(self, request: Request) -> None:
        self._told = self._clock.now
        self.handle(Submitted(request))

    def handle(self, event: Event) -> None:
        """Hands the event to the core and does what it says, as the service does."""
        for command in self.core.handle(event, self._clock.now):
            match command:
                case SendPlan():
                    self._send(command.plan)
                case Publish():
                    self._listener.brought(self.name, command.items, command.finished, self._told)
                case Refuse():
                    self._listener.refused(command.refusal, self._told)
                case WakeAt():
                    self._wake = command.at
                    self._clock.at(command.at, self._woken, command.at)
        self._listener.changed(self.name)

    def _send(self, plan: Plan) -> None:
        ways, clock = self._ways, self._clock
        done = self._executor.run(plan)
        passage = self._stages.run(plan, done.works, done.seconds, clock.now + ways.turn / 2, ways.gap)
        self._listener.ran(self.name, plan, done, passage)
        result = StepDone(plan.step, done.rows, done.seconds, passage.idle, len(done.works))
        clock.at(passage.end + ways.turn / 2, self._done, result, passage.end + ways.outward)

    def _done(self, result: StepDone, told: float) -> None:
        self._told = told
        self.handle(result)

    def _woken(self, at: float) -> None:
        if at == self._wake:  # no later command has replaced it
            self._wake = None
            self.handle(Woken())
