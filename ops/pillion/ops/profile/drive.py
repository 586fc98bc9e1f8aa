"""Drives an executor over its own gRPC stream, as a scheduler does, with plans of our making."""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from pillion.actors import Stop
from pillion.contracts.access import Access
from pillion.contracts.entries import Facts, Request, Sampling
from pillion.ops.profile.shapes import Chunk, Shape
from pillion.scheduler.link import Link
from pillion.scheduler.messages import Connected, Event, Plan, StepDone, StepFailed, Take

EPOCH = 1  # the lowest: a scheduler's own, from a clock, is far beyond it, and is never pushed aside
ATTACH_SECONDS = 600.0  # while the model is loaded
STEP_SECONDS = 120.0


class ProfileError(RuntimeError):
    """The executor cannot be measured. One line that says why and what to do."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Of a shape's repeats, seconds."""

    seconds: tuple[float, ...]
    gaps: tuple[
        float, ...
    ]  # the executor's idle time before each but the first, whose plan was there in time


class Driver:
    """One attachment. Each shape takes fresh slots; KV before its rows is as if found in the prefix index."""

    def __init__(self, address: str, access: Access) -> None:
        self._events: asyncio.Queue[Event] = asyncio.Queue()  # as many as plans were sent, at most
        self._link = Link(address, "profile", self._events.put_nowait, access)
        self._step = 0
        self._incarnation = 0
        self._slots = 0  # that the last shape took
        self._block = 0  # blocks are taken in turn, so that what is read comes from memory
        self._blocks = 1  # how many of them are written
        self._running: asyncio.Task[None] | None = None
        self.facts: Facts | None = None

    async def attach(self) -> Facts:
        """Raises ProfileError where the executor has, or had, a scheduler of its own."""
        self._running = asyncio.create_task(self._link.run(EPOCH))
        event = await self._next(ATTACH_SECONDS)
        if not isinstance(event, Connected):
            raise ProfileError(f"the executor at {self._link.address} does not answer as one")
        self.facts = event.facts
        return event.facts

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    async def warm(self, positions: int, seconds: float) -> int:
        """Prefills prompts over so many positions of KV, or as many as there is time for; gives their number.

        Memory that nobody wrote is one page of zeros, which no later read would have to fetch.
        """
        assert self.facts is not None
        size, most = self.facts.block_size, min(self.facts.max_step_tokens, self.facts.max_model_len - 2)
        blocks = max(min(self.facts.num_blocks - 1, positions // size), 1)
        end = time.monotonic() + seconds
        written = 0
        while written < blocks and (time.monotonic() < end or not written):
            self._block, self._blocks = written, min(written + max(most // size, 1), blocks)
            await self.time(Shape(chunks=(Chunk(0, min((self._blocks - written) * size, most)),)), 1)
            written = self._blocks
        return written * size

    async def time(self, shape: Shape, repeats: int) -> Timing:
        """Runs the step so many times, one behind the other. Raises ProfileError."""
        takes = tuple(self._takes(shape, repeats))
        plans = [self._plan(takes=takes)]
        plans += [self._plan(shape, repeat) for repeat in range(repeats)]
        for plan in plans:
            self._link.send(plan)
        done = [await self._result(plan.step) for plan in plans][1:]
        return Timing(tuple(step.seconds for step in done), tuple(step.gap_seconds for step in done[1:]))

    async def turn(self, shape: Shape) -> float:
        """Seconds from sending a plan to an idle executor to its result, less the step's own."""
        plans = [self._plan(takes=tuple(self._takes(shape, 1))), self._plan(shape, 0)]
        self._link.send(plans[0])
        await self._result(plans[0].step)
        began = time.perf_counter()
        self._link.send(plans[1])
        step = await self._result(plans[1].step)
        return time.perf_counter() - began - step.seconds

    async def _result(self, step: int) -> StepDone:
        event = await self._next(STEP_SECONDS)
        if isinstance(event, StepFailed):
            raise ProfileError(f"step {event.step} failed: {event.message}")
        if not isinstance(event, StepDone) or event.step != step:
            raise ProfileError(f"the executor left, or another scheduler took it over: {self._link.why_not}")
        if any(row.error for row in event.rows):
            raise ProfileError(f"step {step}: {next(row.error for row in event.rows if row.error)}")
        return event

    async def _next(self, seconds: float) -> Event:
        assert self._running is not None
        waiting = asyncio.ensure_future(self._events.get())
        try:
            await asyncio.wait({waiting, self._running}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not waiting.done():
                waiting.cancel()
        if waiting.done() and not waiting.cancelled():
            return waiting.result()
        if self._running.done():
            try:
                self._running.result()
            except Stop as stop:
                raise ProfileError(
                    f"{stop}; one that a scheduler has used cannot be measured: leave --executor out"
                ) from None
        raise ProfileError(
            f"the executor at {self._link.address} gave no answer in {seconds:g} s: {self._link.why_not}"
        )

    def _takes(self, shape: Shape, repeats: int) -> list[Take]:
        """Slots for the shape's sequences, with all tokens up to the step's last row."""
        takes: list[Take] = []
        for context in shape.contexts:
            takes.append(self._take(len(takes), context + 1, context, repeats))
        for chunk in shape.chunks:
            known = chunk.start + chunk.count + (not chunk.whole)
            takes.append(self._take(len(takes), known, known, repeats))
        return takes

    def _take(self, slot: int, known: int, prompt: int, repeats: int) -> Take:
        assert self.facts is not None
        self._incarnation += 1
        draw = random.Random(self._incarnation)
        vocabulary = self.facts.vocab_size
        tokens = draw.choices(range(vocabulary // 8, vocabulary), k=known)  # what is special comes first
        count = -(-(known + repeats) // self.facts.block_size)
        blocks = [1 + (self._block + index) % self._blocks for index in range(count)]
        self._block = (self._block + count) % self._blocks
        return Take(
            slot=slot,
            incarnation=self._incarnation,
            request=Request(
                id=f"profile-{self._incarnation}",
                gateway="profile",
                model=self.facts.model,
                prompts=(),
                sampling=Sampling(seed=self._incarnation, ignore_eos=True),
                arrival=0.0,
            ),
            choice=0,
            tokens=tuple(tokens),
            prompt_length=max(prompt, 1),
            blocks=tuple(blocks),
            max_tokens=known + repeats + 1,
        )

    def _plan(self, shape: Shape | None = None, repeat: int = 0, takes: Sequence[Take] = ()) -> Plan:
        """One that takes slots, or the shape's step for the n-th time: what sampled goes on by a token."""
        self._step += 1
        release = tuple(range(self._slots)) if takes else ()
        if takes:
            self._slots = len(takes)
        contexts, chunks = (shape.contexts, shape.chunks) if shape else ((), ())
        count = len(contexts) + len(chunks)
        return Plan(
            step=self._step,
            release=release,
            take=tuple(takes),
            slots=tuple(range(count)),
            starts=tuple(
                [context + repeat for context in contexts]
                + [chunk.start + repeat * chunk.whole for chunk in chunks]
            ),
            counts=tuple([1] * len(contexts) + [chunk.count for chunk in chunks]),
            samples=tuple([1] * len(contexts) + [int(chunk.whole) for chunk in chunks]),
            block_counts=(0,) * count,
            blocks=(),
            decodes=len(contexts),
            budget=0,
        )
