"""Runs the simulator's replica, of one pipeline stage or several, with all requests there from the start."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pillion.config import Scheduler
from pillion.contracts.entries import Facts, Refusal, Request, Sampling, Tokens
from pillion.ops.simulate import executor
from pillion.ops.simulate.bubbles import Bubbles
from pillion.ops.simulate.clock import Clock
from pillion.ops.simulate.replica import Replica
from pillion.ops.simulate.stages import Hop, Passage, Stages, at_once
from pillion.scheduler.core import Core
from pillion.scheduler.messages import Plan
from pillion.steptime import StepTime, Ways, Work

from .gpu import Seconds

BLOCK = 16  # positions


@dataclass(frozen=True, slots=True)
class Job:
    """A request: tokens in and out."""

    prompt: int
    output: int


@dataclass(slots=True)
class Ran:
    """What came of a run. A listener of the replica."""

    bubbles: Bubbles
    steps: list[Work] = field(default_factory=list)
    seconds: float = 0.0  # until the last request had ended

    @property
    def riding(self) -> float:
        """Share of the decodes that are beside a chunk."""
        return sum(work.decodes for work in self.steps if work.chunks) / sum(
            work.decodes for work in self.steps
        )

    @property
    def median_wait(self) -> float:
        """Bubbles of a request, seconds."""
        return self.bubbles.requests.quantile(0.5)

    def ran(self, replica: str, plan: Plan, done: executor.Ran, passage: Passage) -> None:
        self.steps += done.works
        self.bubbles.ran(replica, plan, done.seconds, passage)

    def brought(self, replica: str, items: Sequence[Tokens], finished: Sequence[str], at: float) -> None:
        for request in finished:
            self.bubbles.ended(request)
            self.seconds = at

    def refused(self, refusal: Refusal, at: float) -> None:
        raise AssertionError(refusal.message)

    def changed(self, replica: str) -> None:
        """Nothing that is counted."""


def run(
    settings: Scheduler,
    seconds: Seconds,
    jobs: Sequence[Job],
    *,
    known: StepTime | None = None,
    stages: int = 1,
    hop: Hop = at_once,
    tile: int = 1,
    longest: int = 1 << 14,
) -> Ran:
    """`seconds`: of a step, all stages together. `known`: what the scheduler knows of it; without, it learns.

    `longest`: positions that each slot has blocks for.
    """
    slots = settings.max_num_seqs
    facts = Facts(
        model="",
        fingerprint="",
        max_model_len=longest,
        vocab_size=2,
        end_tokens=(),
        block_size=BLOCK,
        num_blocks=slots * -(-longest // BLOCK) + 1,
        max_num_seqs=slots,
        max_step_tokens=1 << 20,
        tile=tile,
        dtype="",
        backend="",
        pp=stages,
    )
    clock, ran = Clock(), Ran(Bubbles(stages, 1))
    chain = Stages(stages, hop)
    replica = Replica("0", Core(settings), executor.Executor(seconds), facts, Ways(), clock, ran, chain)
    for index, job in enumerate(jobs):
        replica.submit(_request(index, job))
    replica.connect(known)
    clock.run(lambda: True)
    return ran


def _request(index: int, job: Job) -> Request:
    return Request(
        id=str(index),
        gateway="",
        model="",
        prompts=((1,) * job.prompt,),
        arrival=float(index),
        sampling=Sampling(seed=0, ignore_eos=True),
        max_tokens=job.output,
    )
