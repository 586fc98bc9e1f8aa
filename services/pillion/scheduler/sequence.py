"""One prompt with the tokens generated for it, and the states it goes through."""

from enum import Enum, auto
from math import inf

from pillion.contracts.entries import Request

from .prefix import Entry


class State(Enum):
    WAITING = auto()  # no slot, no blocks: new, preempted or lost
    PREFILLING = auto()  # has a slot; some of its known tokens are in no plan yet
    DECODING = auto()  # all its known tokens are in sent plans; one token a step
    ENDED = auto()


class Change(Enum):
    ADMIT = auto()  # takes a slot
    WHOLE = auto()  # the plan that computes its last known token is made
    LEAVE = auto()  # gives slot and blocks back: preempted, yielded, or lost with a step or the executor
    END = auto()  # finished, cancelled or failed


TRANSITIONS: dict[tuple[State, Change], State] = {
    (State.WAITING, Change.ADMIT): State.PREFILLING,
    (State.PREFILLING, Change.WHOLE): State.DECODING,
    (State.PREFILLING, Change.LEAVE): State.WAITING,
    (State.DECODING, Change.LEAVE): State.WAITING,
    (State.WAITING, Change.END): State.ENDED,  # a cancel, or the result of a plan sent before it left
    (State.PREFILLING, Change.END): State.ENDED,
    (State.DECODING, Change.END): State.ENDED,
}


class IllegalChange(RuntimeError):
    """A sequence was asked for a change that its state does not have: a fault in the scheduler."""


class Sequence:
    """Mutable; owned by the core. Positions count the sequence's tokens, prompt included, from 0."""

    __slots__ = (
        "blocks",
        "cached",
        "capacity",
        "choice",
        "computed",
        "constraint",
        "entries",
        "failures",
        "incarnation",
        "indexed",
        "key",
        "limit",
        "logprobs",
        "max_tokens",
        "preemptions",
        "priority",
        "prompt_length",
        "rank",
        "reached",
        "request",
        "sent",
        "slot",
        "state",
        "step",
        "taken",
        "tokens",
        "told",
    )

    def __init__(
        self,
        request: Request,
        choice: int,
        *,
        done: tuple[int, ...],
        max_tokens: int,
        order: int,
        ageing: float,
    ) -> None:
        """`order` counts submissions; `ageing`: seconds of waiting that outweigh one level of priority."""
        prompt = request.prompts[choice // request.n]
        self.request = request
        self.choice = choice
        self.constraint = request.sampling.constraint
        self.prompt_length = len(prompt)
        self.tokens = [*prompt, *done]  # all that is known
        self.priority = request.priority
        # Victims are chosen by rank, queues are ordered by key. All age at one pace, so the order of two
        # never changes: to age by priority - age / ageing is the same as this constant.
        self.rank = (request.priority, request.arrival, order)
        self.key = (request.priority * ageing + request.arrival, order)
        self.state = State.WAITING
        self.preemptions = 0
        self.reached = 0  # the furthest position before which a step that succeeded computed its tokens
        self.failures = 0  # failed steps that named it since it came further
        self.cached: int | None = None  # prompt tokens found in the index when first scheduled
        self.logprobs: list[
            bytes
        ] = []  # of the prompt, since its last take; they go out with the first token
        self.incarnation = 0  # of the last take; 0 before the first
        self.step = 0  # the last plan that named it or gave it blocks
        self.taken = 0  # the plan that gave it its slot last
        self.told = inf  # when its last token came; none has yet
        self.slot = -1
        self.allow(max_tokens)
        self.clear()

    def allow(self, max_tokens: int) -> None:
        """Sets the most output tokens. The last of them is never computed, so it needs no KV."""
        self.max_tokens = max_tokens
        self.limit = self.prompt_length + max_tokens - 1  # positions that ever need KV

    def clear(self) -> None:
        """Forgets what the executor had of it."""
        self.slot = -1
        self.computed = 0  # positions whose KV is computed by sent plans and the one being made
        self.blocks: list[int] = []
        self.capacity = 0  # positions that the blocks hold
        self.sent = 0  # blocks that the executor knows
        self.entries: list[Entry] = []  # of its leading blocks that are in the prefix index
        self.indexed = True  # False once a full block of its could not enter the index

    def change(self, change: Change) -> None:
        """Raises IllegalChange."""
        state = TRANSITIONS.get((self.state, change))
        if state is None:
            raise IllegalChange(f"{self.request.id}/{self.choice}: no {change.name} in {self.state.name}")
        self.state = state

    @property
    def output(self) -> int:
        """How many output tokens are known."""
        return len(self.tokens) - self.prompt_length

    @property
    def scores(self) -> bool:
        """Whether log-probabilities of its prompt are wanted still, for which all of it is computed."""
        return self.request.sampling.prompt_logprobs is not None and not self.output

    def scored(self, start: int, end: int) -> int:
        """How many positions of a chunk tell of a prompt token, where that is wanted."""
        return max(0, min(end, self.prompt_length - 1) - start) if self.scores else 0

    @property
    def running(self) -> bool:
        return self.state is State.PREFILLING or self.state is State.DECODING
