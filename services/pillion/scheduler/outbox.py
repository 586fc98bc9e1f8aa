"""What one event leads to, until it is told."""

from dataclasses import dataclass, field

from pillion.contracts.entries import Tokens

from .messages import Command, Compile, Publish


@dataclass(slots=True)
class Outbox:
    """Plans go first: an executor may be idle."""

    plans: list[Command] = field(default_factory=list)
    compiles: list[Compile] = field(default_factory=list)
    refusals: list[Command] = field(default_factory=list)
    items: list[Tokens] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    parked: list[str] = field(default_factory=list)

    def commands(self, step: int) -> list[Command]:
        commands = [*self.plans, *self.compiles, *self.refusals]
        if self.items or self.finished or self.parked:
            commands.append(Publish(step, tuple(self.items), tuple(self.finished), tuple(self.parked)))
        return commands
