"""Runs real scheduler cores over the stages of a pipeline, all requests there from the start.

Each of as many cores as stages makes micro-batches of its own sequences, since a sequence's next token needs
its last one. A stage runs micro-batches in the order in which they come. One stage is a plain replica.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from pillion.config import Scheduler
from pillion.contracts.entries import Facts, Request, Sampling
from pillion.ops.simulate.clock import Clock
from pillion.ops.simulate.executor import Executor
from pillion.scheduler.core import Core
from pillion.scheduler.messages import Connected, Event, Plan, Publish, SendPlan, StepDone, Submitted
from pillion.steptime import Work

from .gpu import Deployment, Seconds

BLOCK = 16  # positions
UNEQUAL_PREFILL, PREFILL_BESIDE_DECODE, UNEQUAL_DECODE = "PB1", "PB2", "PB3"


@dataclass(frozen=True, slots=True)
class Job:
    """A request: tokens in and out."""

    prompt: int
    output: int


@dataclass(slots=True)
class Stage:
    free: float = 0.0  # when it has run all that came
    last: Work | None = None


@dataclass(slots=True)
class Ran:
    """What came of a run."""

    steps: list[Work] = field(default_factory=list)
    seconds: float = 0.0  # until the last request had ended
    busy: float = 0.0  # of all stages
    bubbles: dict[str, float] = field(default_factory=dict)  # seconds that stages waited, by kind
    waits: dict[str, float] = field(default_factory=dict)  # the same by request: those ahead of its steps

    @property
    def median_wait(self) -> float:
        return median(self.waits.values())

    @property
    def riding(self) -> float:
        """Share of the decodes that are beside a chunk."""
        return sum(work.decodes for work in self.steps if work.chunks) / sum(
            work.decodes for work in self.steps
        )


class Pipeline:
    """`seconds`: of a step, all stages together; each takes an equal share."""

    def __init__(
        self,
        settings: Scheduler,
        seconds: Seconds,
        *,
        deployment: Deployment | None = None,
        tile: int = 1,
        longest: int = 1 << 14,
    ) -> None:
        """`longest`: positions that each slot has blocks for."""
        self._seconds = seconds
        self._deployment = deployment
        self._clock = Clock()
        self._ran = Ran()
        stages = deployment.stages if deployment else 1
        self._stages = [Stage() for _ in range(stages)]
        slots = settings.max_num_seqs
        self._facts = Facts(
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
        )
        self._cores = [Core(settings) for _ in self._stages]
        self._executors = [Executor(seconds) for _ in self._stages]
        self._holders: list[dict[int, str]] = [{} for _ in self._stages]  # of slots

    def run(self, jobs: Sequence[Job]) -> Ran:
        """Jobs are dealt to the cores in turns."""
        for index, job in enumerate(jobs):
            request = Request(
                id=str(index),
                gateway="",
                model="",
                prompts=((1,) * job.prompt,),
                arrival=float(index),
                sampling=Sampling(seed=0, ignore_eos=True),
                max_tokens=job.output,
            )
            self._handle(index % len(self._cores), Submitted(request))
        for number in range(len(self._cores)):
            self._handle(number, Connected(self._facts))
        self._clock.run(lambda: True)
        return self._ran

    def _handle(self, number: int, event: Event) -> None:
        for command in self._cores[number].handle(event, self._clock.now):
            if isinstance(command, SendPlan):
                self._send(number, command.plan)
            elif isinstance(command, Publish) and command.finished:
                self._ran.seconds = self._clock.now

    def _send(self, number: int, plan: Plan) -> None:
        done = self._executors[number].run(plan)
        at, waited = self._clock.now, 0.0
        for work in done.works:
            self._ran.steps.append(work)
            share = self._seconds(work) / len(self._stages)
            for index, stage in enumerate(self._stages):
                if index and self._deployment:
                    at += self._deployment.send(work.rows)
                waited += self._bubble(stage, work, at)
                at = stage.free = max(at, stage.free) + share
                stage.last = work
                self._ran.busy += share
        for request in self._named(number, plan):
            self._ran.waits[request] = self._ran.waits.get(request, 0.0) + waited
        self._clock.at(
            at, self._handle, number, StepDone(plan.step, done.rows, done.seconds, 0.0, len(done.works))
        )

    def _bubble(self, stage: Stage, work: Work, at: float) -> float:
        """How long the stage waits for this micro-batch after the last one, counted by what the two carry."""
        if stage.last is None or at <= stage.free:
            return 0.0
        both = bool(stage.last.chunks), bool(work.chunks)
        kind = {(True, True): UNEQUAL_PREFILL, (False, False): UNEQUAL_DECODE}.get(
            both, PREFILL_BESIDE_DECODE
        )
        self._ran.bubbles[kind] = self._ran.bubbles.get(kind, 0.0) + at - stage.free
        return at - stage.free

    def _named(self, number: int, plan: Plan) -> list[str]:
        holders = self._holders[number]
        for take in plan.take:
            holders[take.slot] = take.request.id
        return [holders[slot] for slot in plan.slots]
