"""The one thread that runs steps: in order, the next plan already waiting when one ends. And another one
that has constraints compiled meanwhile.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

from pillion.actors import Exit, Stop
from pillion.contracts import executor_pb2
from pillion.contracts.entries import Facts
from pillion.executor.slots import BadPlan
from pillion.executor.work import Work

log = logging.getLogger(__name__)

T = TypeVar("T")


class Parts(Protocol):
    """Where a step's time went, seconds, and what it did."""

    @property
    def seconds(self) -> float: ...

    @property
    def prepare(self) -> float: ...

    @property
    def forward(self) -> float: ...

    @property
    def logits(self) -> float: ...

    @property
    def sample(self) -> float: ...

    @property
    def work(self) -> Work: ...


class Engine(Protocol):
    """What the service needs of `pillion.executor.engine.Engine`."""

    @property
    def facts(self) -> Facts: ...

    @property
    def parts(self) -> Sequence[Parts]: ...

    def run(self, plan: executor_pb2.Plan) -> executor_pb2.StepResult: ...

    def compile(self, place: int, message: executor_pb2.Constraint) -> None: ...

    def reset(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Step:
    """A plan that ran. `result` is None if it raised `error`. Times are seconds of `time.time`."""

    plan: executor_pb2.Plan
    result: executor_pb2.StepResult | None
    error: str
    began: float
    ended: float
    parts: Sequence[Parts]  # of each step; none where it had no rows
    gap: float | None  # idle seconds before it, where the one before it had left work to do

    def message(self) -> executor_pb2.FromExecutor:
        if self.result is None:
            failed = executor_pb2.StepFailed(step=self.plan.step, message=self.error)
            return executor_pb2.FromExecutor(failed=failed)
        return executor_pb2.FromExecutor(result=self.result)


class Compute:
    """Owns the threads. Their queues are bounded by those who submit: each attachment by its room for plans,
    and by the places for constraints.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "compute")
        self._compiler = ThreadPoolExecutor(1, "compile")
        self._idle_since = 0.0  # perf_counter
        self._left_work = False
        self.begun = 0  # steps
        self.busy = False  # whether the last of them runs
        self.fault = ""  # why no step can succeed any more

    async def guard(self, limit: float) -> None:
        """Raises Stop when the engine died: no step can succeed, or one takes longer than `limit` seconds.

        Counted in looks and not by the clock, which goes on while the whole process is stopped.
        """
        look = min(1.0, limit / 4)
        step, looks = 0, 0
        while not self.fault:
            await asyncio.sleep(look)
            looks = looks + 1 if self.busy and self.begun == step else 0
            step = self.begun
            if looks * look > limit:
                self.fault = f"step hangs for more than {limit:g} s"
        raise Stop(Exit.ENGINE_DIED, f"the engine died: {self.fault}")

    async def call(self, function: Callable[[], T]) -> T:
        """Runs `function` in the thread, after what was submitted before."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    def submit(self, engine: Engine, plan: executor_pb2.Plan) -> "Future[Step]":
        """Queues a step. Cancelling the future takes it out of the queue, unless it has begun."""
        return self._pool.submit(self._run, engine, plan)

    def compile(self, engine: Engine, wanted: executor_pb2.Compile) -> "Future[None]":
        """Queues a constraint, beside the steps."""
        return self._compiler.submit(self._compile, engine, wanted)

    async def close(self, seconds: float) -> bool:
        """Whether all that was submitted has ended within `seconds`; the threads end then."""
        pools = self._pool, self._compiler
        last = [asyncio.wrap_future(pool.submit(lambda: None)) for pool in pools]
        for pool in pools:
            pool.shutdown(wait=False)
        _, left = await asyncio.wait(last, timeout=seconds)
        return not left

    @staticmethod
    def _compile(engine: Engine, wanted: executor_pb2.Compile) -> None:
        try:
            engine.compile(wanted.place, wanted.constraint)
        except Exception:
            # It belongs to the sequences with this constraint: they are told as they take their slots.
            log.exception("a constraint was not compiled")

    def _run(self, engine: Engine, plan: executor_pb2.Plan) -> Step:
        began, start = time.time(), time.perf_counter()
        idle = start - self._idle_since
        gap = idle if self._left_work else None
        result, error = None, ""
        self.begun += 1
        self.busy = True
        try:
            result = engine.run(plan)
        except BadPlan as raised:
            log.error("step %d refused: %s", plan.step, raised)
            error = f"BadPlan: {raised}"
        except Exception as raised:
            # Whatever a step raises belongs to that step: the scheduler is told, the next plan may well run.
            log.exception("step %d failed", plan.step)
            error = f"{type(raised).__name__}: {raised}"
            if isinstance(raised, torch.AcceleratorError):
                self.fault = (
                    error  # the device's context is broken, and stays so as long as the process lives
                )
        end = time.perf_counter()
        self.busy = False
        self._idle_since = end
        self._left_work = result is not None and len(plan.slot) > sum(
            finish != executor_pb2.RUNNING for finish in result.finish
        )
        if result is not None:
            result.step = plan.step
            result.seconds = end - start
            result.gap_seconds = idle if gap is not None else 0.0
        return Step(plan, result, error, began, began + (end - start), engine.parts, gap)
