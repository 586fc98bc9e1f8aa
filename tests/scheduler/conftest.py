"""Drives the core with a toy executor whose next token depends on every KV position it reads.

With `pp` stages in its facts plans run beside each other, each stage with a share of a step's time.
"""

import dataclasses
import random
import struct
import sys
from collections import deque
from dataclasses import dataclass, field

import msgspec
import pytest

from pillion import config
from pillion.contracts.entries import Constraint, Facts, Request, Sampling
from pillion.scheduler.core import Core
from pillion.scheduler.messages import (
    Cancelled,
    Compile,
    Compiled,
    Connected,
    Disconnected,
    Plan,
    Publish,
    Refuse,
    RowResult,
    SendPlan,
    StepDone,
    StepFailed,
    Submitted,
    WakeAt,
    Woken,
)
from pillion.scheduler.plan import Draft
from pillion.steptime import StepTime

VOCABULARY = 1000
END = 999


def facts(**changes) -> Facts:
    values = {
        "model": "toy",
        "fingerprint": "toy",
        "max_model_len": 4096,
        "vocab_size": VOCABULARY,
        "end_tokens": (END,),
        "block_size": 16,
        "num_blocks": 1025,
        "max_num_seqs": 512,
        "max_step_tokens": 8192,
        "tile": 16,
        "dtype": "none",
        "backend": "toy",
    }
    return Facts(**(values | changes))


def settings(**changes) -> config.Scheduler:
    values = {"max_num_seqs": 256, "slo_tbt": 1.0}
    return config.Scheduler(**(values | changes))


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    draw = random.Random(seed)
    return tuple(draw.randrange(END) for _ in range(length))


def request(
    id: str,
    *prompts: tuple[int, ...],
    seed: int = 0,
    ignore_eos: bool = False,
    regex: str = "",
    prompt_logprobs: int | None = None,
    **fields,
) -> Request:
    values = {"gateway": "g", "model": "toy", "arrival": 0.0, "max_tokens": 8}
    sampling = Sampling(
        seed=seed,
        ignore_eos=ignore_eos,
        constraint=Constraint("regex", regex) if regex else None,
        prompt_logprobs=prompt_logprobs,
    )
    return Request(id=id, prompts=prompts, sampling=sampling, **(values | fields))


def draft(step: int) -> Draft:
    return Draft(step)


def chain(before: int, token: int) -> int:
    return (before * 1_000_003 + token + 1) % (1 << 61)


def draw(digest: int, request: Request, choice: int, position: int) -> int:
    """The toy's sampling: of all tokens so far, the seed, the choice and the position."""
    value = hash((digest, request.sampling.seed, choice, position))
    return END if not request.sampling.ignore_eos and value % 41 == 0 else value % END


def told(prompt: tuple[int, ...], start: int = 0, end: int | None = None) -> bytes:
    """The toy's log-probabilities: what rows start .. end - 1 of a prompt tell of the tokens behind them."""
    digest, found = 0, b""
    for position, token in enumerate(prompt[:-1]):
        digest = chain(digest, token)
        if start <= position < (len(prompt) if end is None else end):
            found += struct.pack("<if", prompt[position + 1], digest % 1009)
    return found


def expected(request: Request, choice: int, max_model_len: int = 4096) -> tuple[tuple[int, ...], str]:
    """What a choice brings when nothing disturbs it."""
    tokens = request.prompts[choice // request.n]
    wanted = request.max_tokens
    most = max_model_len - len(tokens) if wanted is None else max(wanted, 1)
    digest, output = 0, []
    for token in tokens:
        digest = chain(digest, token)
    while True:
        output.append(draw(digest, request, choice, len(output)))
        digest = chain(digest, output[-1])
        if output[-1] == END and not request.sampling.ignore_eos:
            return tuple(output), "stop"
        if len(output) == most:
            return tuple(output), "length"


@dataclass
class Slot:
    incarnation: int
    request: Request
    choice: int
    tokens: list[int]
    prompt_length: int
    max_tokens: int
    table: list[int]
    scores: bool  # nothing of its output is known yet
    ended: bool = False


class Executor:
    """Keeps what each KV cell holds, and compares every cell that a row reads with the tokens."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.slots: dict[int, Slot] = {}
        self.cells: dict[tuple[int, int], object] = {}
        self.rows_run = 0
        self.rows_scored = 0
        self.steps = 0  # of the last plan
        self.last_step = 0
        self.tainted_until = 0  # a step failed: plans that were sent before run on garbage

    @property
    def tainted(self) -> bool:
        return self.last_step <= self.tainted_until

    def run(self, plan: Plan) -> tuple[RowResult, ...]:
        self._apply(plan)
        self.steps = 0
        results: dict[int, RowResult] = {}
        for step in range(plan.steps):
            ran = False
            for slot, start, count, sample in zip(
                plan.slots, plan.starts, plan.counts, plan.samples, strict=True
            ):
                if self.slots[slot].ended or step >= max(sample, 1):
                    continue
                ran = True
                row = self._row(self.slots[slot], slot, start + step, count, min(sample, 1))
                if row is not None:
                    before = results[slot].tokens if step else ()
                    results[slot] = dataclasses.replace(row, tokens=before + row.tokens)
            self.steps += ran
        return tuple(results.values())

    def fail(self, plan: Plan) -> None:
        """The step raises in mid-air: some of what it was to write is garbage."""
        self._apply(plan)
        for slot, start, count in zip(plan.slots, plan.starts, plan.counts, strict=True):
            table = self.slots[slot].table
            for position in range(start, start + count + plan.steps - 1):
                if position // self.facts.block_size == len(table):
                    break  # others go further
                self.cells[self._cell(table, position)] = "garbage"

    def _apply(self, plan: Plan) -> None:
        assert plan.step == self.last_step + 1
        self.last_step = plan.step
        size = self.facts.block_size
        for slot in plan.release:
            del self.slots[slot]  # only a slot that is held may be released
        for take in plan.take:
            assert take.slot not in self.slots, "a slot was taken twice"
            self.slots[take.slot] = Slot(
                take.incarnation,
                take.request,
                take.choice,
                list(take.tokens),
                take.prompt_length,
                take.max_tokens,
                list(take.blocks),
                len(take.tokens) == take.prompt_length,
            )
        granted = iter(plan.blocks)
        for slot, count in zip(plan.slots, plan.block_counts, strict=True):
            self.slots[slot].table += [next(granted) for _ in range(count)]
        assert next(granted, None) is None
        assert len(set(plan.slots)) == len(plan.slots)
        # No block is written by two rows of a step, nor read by one while another writes it.
        written: dict[int, int] = {}
        for slot, start, count, sample in zip(
            plan.slots, plan.starts, plan.counts, plan.samples, strict=True
        ):
            assert count > 0
            end = start + count + max(sample - 1, 0)
            for index in range(start // size, (end - 1) // size + 1):
                block = self.slots[slot].table[index]
                assert 0 < block < self.facts.num_blocks
                assert written.setdefault(block, slot) == slot
        for slot, start in zip(plan.slots, plan.starts, strict=True):
            for block in self.slots[slot].table[: start // size]:
                assert written.get(block, slot) == slot
        assert sum(plan.counts) <= self.facts.max_step_tokens
        assert all(count == 1 for count in plan.counts[: plan.decodes])
        if plan.steps > 1:
            assert plan.decodes == len(plan.slots) and all(plan.samples)

    def _cell(self, table: list[int], position: int) -> tuple[int, int]:
        size = self.facts.block_size
        return table[position // size], position % size

    def _row(self, slot: Slot, number: int, start: int, count: int, sample: int) -> RowResult | None:
        tokens = slot.tokens
        if not self.tainted:
            assert start + count <= len(tokens), "a row computes tokens that nobody knows"
            assert sample == (start + count == len(tokens))
        self.rows_run += count
        digest = 0
        for position in range(start + count):
            token = tokens[position] if position < len(tokens) else -1
            digest = chain(digest, token)
            cell = self._cell(slot.table, position)
            if position >= start:
                self.cells[cell] = digest
            elif not self.tainted:
                assert self.cells.get(cell) == digest, f"slot {number} reads wrong KV at {position}"
        scores = slot.request.sampling.prompt_logprobs is not None and slot.scores
        told_of = told(tuple(tokens[: slot.prompt_length]), start, start + count) if scores else b""
        self.rows_scored += len(told_of) // 8
        if not sample:
            return RowResult(number, slot.incarnation, (), prompt_logprobs=told_of) if told_of else None
        position = len(tokens) - slot.prompt_length
        token = draw(digest, slot.request, slot.choice, position)
        tokens.append(token)
        finish = None
        if token == END and not slot.request.sampling.ignore_eos:
            finish = "stop"
        elif position + 1 >= slot.max_tokens:
            finish = "length"
        slot.ended = finish is not None
        return RowResult(number, slot.incarnation, (token,), finish, prompt_logprobs=told_of)


@dataclass
class Stream:
    tokens: list[int] = field(default_factory=list)
    finish: str | None = None
    cached: int = 0
    error: str | None = None


class Drive:
    """A core and its executor in virtual time. `step_time` gives the seconds of a plan's steps, each."""

    def __init__(
        self, core: Core, the_facts: Facts | None = None, step_time=None, connect: bool = True
    ) -> None:
        self.core = core
        self.facts = the_facts or facts()
        self.step_time = step_time or (lambda plan: 0.001)
        self.now = 0.0
        self.executor: Executor | None = None
        self.in_flight: deque[Plan] = deque()
        self.plans: list[Plan] = []
        self.events: list[tuple[object, float]] = []
        self.streams: dict[tuple[str, int], Stream] = {}
        self.finished: list[str] = []
        self.parked: list[str] = []
        self.refusals: dict[str, object] = {}
        self.requests: dict[str, Request] = {}
        self.wake: float | None = None
        self.ends: float | None = None  # when the oldest step in flight ends
        self._returns: deque[float] = deque()  # over stages: when each in flight ends
        self._free = [0.0] * self.facts.pp  # when each stage has done all that was sent
        self.compiling: dict[int, Constraint] = {}  # by place, in the order of the asking
        self.compiled: dict[int, Constraint] = {}
        self.given_away = 0  # places, for another constraint
        self.times: dict[tuple[str, int], list[float]] = {}
        self.arrived: dict[str, float] = {}
        self.most_in_flight = 0
        self.told = 0  # choices of whose prompt all was told
        self.taken_again = 0  # before that
        self.preempted_in_several = 0  # while a plan of several steps was in flight
        self.holders: dict[int, tuple[str, int]] = {}  # by slot
        self.lives: dict[int, int] = {}  # of the holders' requests
        self.named: dict[int, set[tuple[str, int]]] = {}  # by step
        self._busy: dict[int, set[tuple[str, int, int]]] = {}  # by step, lives apart
        self._taken: set[tuple[str, int]] = set()
        self.listeners: list = []  # get each event with its time and commands
        if connect:
            self.connect()

    def handle(self, event) -> None:
        self.events.append((event, self.now))
        preempted = self.core._counters.preemptions
        several = any(plan.steps > 1 for plan in self.in_flight)
        commands = self.core.handle(event, self.now)
        for listener in self.listeners:
            listener(event, self.now, commands)
        for command in commands:
            match command:
                case SendPlan(plan):
                    self._name(plan)
                    for take in plan.take:
                        constraint = take.request.sampling.constraint
                        assert constraint is None or constraint in self.compiled.values()
                    self.in_flight.append(plan)
                    self.plans.append(plan)
                    self.most_in_flight = max(self.most_in_flight, len(self.in_flight))
                    if self.facts.pp > 1:
                        self._returns.append(self._through(plan))
                        self.ends = self._returns[0]
                    elif len(self.in_flight) == 1:
                        self.ends = self.now + self.step_time(plan) * plan.steps
                case Compile(place, constraint):
                    assert place not in self.compiling, "asked for again without an answer"
                    assert constraint not in self.compiled.values(), "it is there"
                    self.given_away += self.compiled.pop(place, None) is not None
                    self.compiling[place] = constraint
                case Publish(_, items, finished, parked):
                    for item in items:
                        self._item(item)
                    self.finished += finished
                    self.parked += parked
                case Refuse(refusal):
                    self.refusals[refusal.request] = refusal
                case WakeAt(at):
                    assert at > self.now
                    self.wake = at
        self.preempted_in_several += several * (self.core._counters.preemptions - preempted)
        self.core.check()

    def _through(self, plan: Plan) -> float:
        """When a plan that is sent now leaves the last stage."""
        at, share = self.now, self.step_time(plan) / self.facts.pp
        for stage, free in enumerate(self._free):
            at = self._free[stage] = max(at, free) + share
        return at

    def _name(self, plan: Plan) -> None:
        """A sequence takes a slot only after every plan that names it has returned, and decodes only when its
        last token is there as the plan begins.
        """
        in_flight = set().union(*(self._busy[other.step] for other in self.in_flight))
        for take in plan.take:
            holder = take.request.id, take.choice
            assert (*holder, take.request.life) not in in_flight
            self.holders[take.slot], self.lives[take.slot] = holder, take.request.life
            if take.request.sampling.prompt_logprobs is not None and len(take.tokens) == take.prompt_length:
                self.taken_again += holder in self._taken
                self._taken.add(holder)
        decodes = {self.holders[slot] for slot in plan.slots[: plan.decodes]}
        for other in self.in_flight:
            if other.step > plan.step - self.facts.pp:
                assert decodes.isdisjoint(self.named[other.step]), "a decode whose token is not there"
        assert len(self.in_flight) <= self.facts.pp
        assert self.facts.pp == 1 or plan.steps == 1
        self.named[plan.step] = {self.holders[slot] for slot in plan.slots}
        self._busy[plan.step] = {(*self.holders[slot], self.lives[slot]) for slot in plan.slots}

    def _item(self, item) -> None:
        stream = self.streams.setdefault((item.request, item.choice), Stream())
        assert stream.finish is None, "an item after the last"
        assert item.position == len(stream.tokens), "a position is lost or doubled"
        one = self.requests[item.request]
        if item.tokens and not item.position and one.sampling.prompt_logprobs is not None:
            assert item.prompt_logprobs == told(one.prompts[item.choice // one.n])
            self.told += 1
        else:
            assert item.prompt_logprobs is None
        stream.tokens += item.tokens
        stream.finish = item.finish
        stream.cached = item.cached
        stream.error = item.error
        self.times.setdefault((item.request, item.choice), []).extend([self.now] * len(item.tokens))

    def connect(self, the_facts: Facts | None = None, measured: StepTime | None = None) -> None:
        self.facts = the_facts or self.facts
        self.executor = Executor(self.facts)
        self._free = [self.now] * self.facts.pp
        self.handle(Connected(self.facts, measured))

    def disconnect(self) -> None:
        self.executor = None
        self.in_flight.clear()
        self._returns.clear()
        self.ends = self.wake = None
        self.compiling.clear()
        self.compiled.clear()
        self.handle(Disconnected())

    def submit(self, *requests: Request) -> None:
        for one in requests:
            self.requests[one.id] = one
            self.arrived[one.id] = self.now
            self.handle(Submitted(one))

    def resume(self, one: Request, done, ended=()) -> None:
        """As after a restart: `done` is what the journal has."""
        self.requests[one.id] = one
        for choice, tokens in done.items():
            self.streams[one.id, choice] = Stream(list(tokens))
        self.handle(Submitted(one, done, ended))

    def cancel(self, id: str, choice: int | None = None) -> None:
        self.handle(Cancelled(id, choice))

    def park(self, id: str, life: int | None = None) -> None:
        self.handle(Cancelled(id, park=True, life=self.requests[id].life if life is None else life))

    def take_up(self, id: str) -> None:
        """What was parked runs again, with the tokens that it brought."""
        self.parked.remove(id)
        one = self.requests[id]
        streams = {choice: stream for (of, choice), stream in self.streams.items() if of == id}
        self.requests[id] = one = msgspec.structs.replace(one, life=one.life + 1)
        ended = tuple(sorted(choice for choice, stream in streams.items() if stream.finish is not None))
        done = {choice: tuple(stream.tokens) for choice, stream in streams.items()}
        self.handle(Submitted(one, done, ended))

    def compile(self) -> None:
        """The executor has compiled the first that it was asked for."""
        place = next(iter(self.compiling))
        self.compiled[place] = self.compiling.pop(place)
        self.handle(Compiled(place))

    def finish_step(self, fail: bool = False) -> Plan:
        """The oldest plan returns."""
        plan = self.in_flight.popleft()
        if self.ends is not None:
            self.now = max(self.now, self.ends)
        following = self.in_flight[0] if self.in_flight else None
        if self.facts.pp > 1:
            self._returns.popleft()
            self.ends = self._returns[0] if following else None
        else:
            self.ends = self.now + self.step_time(following) * following.steps if following else None
        if fail:
            self.executor.fail(plan)
            self.executor.tainted_until = self.in_flight[-1].step if self.in_flight else 0
            self.handle(StepFailed(plan.step, "toy failure"))
        else:
            rows = self.executor.run(plan)
            steps = self.executor.steps
            self.handle(StepDone(plan.step, rows, self.step_time(plan) * max(steps, 1), steps=steps))
        return plan

    def until(self, time: float) -> None:
        """Lets virtual time pass: wakes the core and ends steps when they are due."""
        while True:
            next_event = min((t for t in (self.wake, self.ends) if t is not None), default=None)
            if next_event is None or next_event > time:
                self.now = max(self.now, time)
                return
            self.advance()

    def advance(self) -> bool:
        """The next thing happens: a wake or the end of a step. False when nothing is to happen."""
        if self.wake is not None and (self.ends is None or self.wake <= self.ends):
            self.now, self.wake = max(self.now, self.wake), None
            self.handle(Woken())
            return True
        if self.in_flight:
            self.finish_step()
            return True
        if self.compiling:
            self.compile()
            return True
        return False

    def run(self, limit: int = 20000) -> None:
        """Until nothing is left to do."""
        for _ in range(limit):
            if not self.advance():
                return
        raise AssertionError(f"not finished after {limit} events: {self.core.snapshot()}")

    def check_outputs(self, *ids: str) -> None:
        """Each choice equals the undisturbed run."""
        for id in ids or tuple(self.requests):
            one = self.requests[id]
            for choice in range(len(one.prompts) * one.n):
                stream = self.streams[id, choice]
                tokens, finish = expected(one, choice, self.core.max_model_len)
                assert (tuple(stream.tokens), stream.finish) == (tokens, finish), (id, choice)
            assert self.finished.count(id) == 1

    def output(self, id: str, choice: int = 0) -> tuple[int, ...]:
        return tuple(self.streams[id, choice].tokens)


@pytest.fixture
def toy():
    """This module: the toy executor and its driver."""
    return sys.modules[__name__]


@pytest.fixture
def make():
    """A driver over a new core; settings and facts as dicts."""

    def build(options=None, executor=None, step_time=None, connect=True, **core) -> Drive:
        return Drive(Core(settings(**(options or {})), **core), facts(**(executor or {})), step_time, connect)

    return build
