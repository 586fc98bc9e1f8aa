"""What goes into the core and what comes out of it. No message is ever changed after it is made."""

from dataclasses import dataclass, field

from pillion.contracts.entries import Constraint, Control, Facts, Refusal, Request, TokenLogprob, Tokens
from pillion.steptime import StepTime

# --- events: what happened -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Connected:
    """An executor attached; its slots are empty. The block pool is built from these facts."""

    facts: Facts
    measured: StepTime | None = None  # its cost model, if there is one


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The executor is gone, and with it all slots, blocks and plans in flight."""

    orderly: bool = False  # it was asked to end, and said so: no sequence is suspected of it


@dataclass(frozen=True, slots=True)
class Submitted:
    """A request was read. `done` holds what the journal already has: output tokens by choice."""

    request: Request
    done: dict[int, tuple[int, ...]] = field(default_factory=dict)
    ended: tuple[int, ...] = ()  # choices whose last item the journal has; they do not run again


@dataclass(frozen=True, slots=True)
class Cancelled:
    """`choice` None ends all choices of the request. `park`: without a word, and no life above this one."""

    request: str
    choice: int | None = None
    park: bool = False
    life: int = 0


@dataclass(frozen=True, slots=True)
class Ordered:
    """An administrator's word, and its entry in the control stream."""

    word: Control
    entry: str = "0-0"


@dataclass(frozen=True, slots=True)
class RowResult:
    """What a plan brought for one sequence, named by incarnation and never by slot alone."""

    slot: int
    incarnation: int
    tokens: tuple[int, ...]
    finish: str | None = None  # "stop", "length", "error", "impossible"
    logprobs: tuple[TokenLogprob, ...] | None = None
    error: str | None = None
    prompt_logprobs: bytes = b""  # of prompt tokens, those of plans before come first


@dataclass(frozen=True, slots=True)
class StepDone:
    """Results come in the order of the plans; rows that bring nothing are absent."""

    step: int  # the plan's
    rows: tuple[RowResult, ...]
    seconds: float
    gap_seconds: float = 0.0  # how long the executor was idle before it
    steps: int = 1  # forward passes that ran: fewer than were granted where no row was left


@dataclass(frozen=True, slots=True)
class StepFailed:
    """A step raised: none of the plan's rows are computed. What it was to write into blocks is not there."""

    step: int
    message: str


@dataclass(frozen=True, slots=True)
class Compiled:
    """What was to be compiled in this place is, or cannot be: then each sequence that has it is told so."""

    place: int


@dataclass(frozen=True, slots=True)
class Woken:
    """The time asked for by `WakeAt` has come."""


Event = Connected | Disconnected | Submitted | Cancelled | Ordered | StepDone | StepFailed | Compiled | Woken

# --- commands: what to do --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Take:
    """A sequence takes a slot, with all its tokens and the start of its block table."""

    slot: int
    incarnation: int
    request: Request
    choice: int
    tokens: tuple[int, ...]  # prompt, then what was generated before
    prompt_length: int
    blocks: tuple[int, ...]
    max_tokens: int  # output tokens in all


@dataclass(frozen=True, slots=True)
class Plan:
    """One step, or several over decodes alone, as the executor's contract has it: parallel arrays, one
    element a sequence, decodes first.

    The executor applies `release`, then `take`, then the block grants, then runs the rows.
    """

    step: int
    release: tuple[int, ...]
    take: tuple[Take, ...]
    slots: tuple[int, ...]
    starts: tuple[int, ...]  # absolute position of the first computed token
    counts: tuple[int, ...]  # tokens that the first step computes
    samples: tuple[int, ...]  # tokens granted: 0 while the prompt is not whole, else 1, or one for each step
    block_counts: tuple[int, ...]  # how many of `blocks` each sequence is granted
    blocks: tuple[int, ...]
    decodes: int  # how many of the first rows are decodes
    budget: int  # tokens this step was allowed
    scored: int = 0  # rows whose logits are wanted though nothing is sampled from them

    @property
    def tokens(self) -> int:
        """Computed by the first step."""
        return sum(self.counts)

    @property
    def steps(self) -> int:
        """Forward passes that the plan grants."""
        return max(1, max(self.samples, default=0))


@dataclass(frozen=True, slots=True)
class SendPlan:
    plan: Plan
    predicted: float = 0.0  # seconds, all its steps


@dataclass(frozen=True, slots=True)
class Compile:
    """The executor is to compile this beside its steps, and to keep it in the place of what was there."""

    place: int
    constraint: Constraint


@dataclass(frozen=True, slots=True)
class Publish:
    """Journal and publish these items; `finished` names requests whose last choice ended with them, `parked`
    those that end here for now.
    """

    step: int
    items: tuple[Tokens, ...]
    finished: tuple[str, ...] = ()
    parked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refuse:
    """The request will not run here. Its entry is done."""

    refusal: Refusal
    gateway: str


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send `Woken` at this time. A later command replaces an earlier one."""

    at: float


Command = SendPlan | Compile | Publish | Refuse | WakeAt

# --- what the core looks like ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Snapshot:
    """For heartbeats and metrics. Counts are totals since the core was made, over all executors."""

    max_model_len: int  # what executor and pool can hold; 0 while no executor is attached
    uncomputed: int  # known tokens of accepted sequences that are in no plan yet
    waiting: int  # sequences
    prefilling: int
    decoding: int
    blocks: int  # that can be given out
    free_blocks: int
    cached_blocks: int
    referenced_blocks: int
    in_flight: int  # plans
    overdue: float  # seconds that the oldest step in flight is past its predicted end
    steps: int
    failed_steps: int
    executors_lost: int
    poisonous: int  # sequences given up since each step with them failed
    preemptions: int
    recomputed_tokens: int
    queried_tokens: int  # that the prefix index was asked for
    hit_tokens: int
    flushed_blocks: int  # taken out of the index by an administrator
    late_results: int  # for sequences that had ended
    prefill_rate: float  # prompt tokens/s that steps carry beside the decodes; 0: not known yet
    seats: (
        int  # sequences that can run at once, within the time target if the policy keeps it; 0: not known yet
    )
    step_seconds: float  # until a stream has its next token while prompts wait
    idle_rate: float  # prefill_rate with no decodes
    intake: float  # prompt tokens/s of which it holds some seconds' worth
    cost_model: str  # the hash of the one that was measured; empty where one is learned
    factors: tuple[float, float]  # by which it is corrected: what is likely, what is seldom exceeded
    step_limit: int  # most tokens a step; 0 while no executor is attached
    step_target: float  # seconds that a step with decodes may take; 0: any

    @property
    def running(self) -> int:
        return self.prefilling + self.decoding
