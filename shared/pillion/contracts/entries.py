"""Entries of the Redis streams, as frozen msgspec structs in MessagePack.

Every entry that is stored carries `v`, the schema version. `decode` refuses what it does not know, so that
the reader can set the entry aside instead of guessing. What a field may hold is part of its type: numbers
that no service could go on with (NaN among them) are refused on reading, before they do any harm.
"""

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

SCHEMA = 1
"""Written by this release. A new field with a default needs no new one: other releases pass it over."""
OLDEST = 1
"""Read by this release: those of the release before, at least."""

T = TypeVar("T")


class UnknownSchema(ValueError):
    """The entry was written by a release whose schema this one cannot read."""


_INT32 = (1 << 31) - 1

Token = Annotated[int, Meta(ge=0, le=_INT32)]
Count = Annotated[int, Meta(ge=0, le=1 << 62)]
Time = Annotated[float, Meta(ge=0, le=1e12)]  # seconds since the epoch
Amount = Annotated[float, Meta(ge=0, le=1e15)]  # seconds, or a rate
Name = Annotated[str, Meta(max_length=1024)]
Identity = Annotated[str, Meta(min_length=1, max_length=256)]  # becomes a part of keys
EntryId = Annotated[str, Meta(pattern=r"^[0-9]{1,20}-[0-9]{1,20}$")]


class Struct(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of all entries: frozen; fields at their default take no bytes."""


MAX_CONSTRAINT = 1 << 17
"""Characters of a constraint. A plan may carry one for each slot."""


class Constraint(Struct, frozen=True):
    """What a choice's whole text has to be, see pillion.grammar.

    `json`: a JSON Schema; what llguidance is told of it stands under its key `x-guidance`. `regex`: all of
    the text matches. `lark`: a grammar in llguidance's variant of Lark, which can hold schemas and special
    tokens. `ebnf`: one in the notation of llama.cpp. It holds behind the first `after`, if that is not empty:
    until then any text may come.
    """

    kind: Literal["json", "regex", "lark", "ebnf"]
    text: Annotated[str, Meta(min_length=1, max_length=MAX_CONSTRAINT)]
    after: Annotated[str, Meta(max_length=64)] = ""


class Sampling(Struct, frozen=True):
    """How a token is drawn from one position's logits. The draw depends on (seed, choice, position) only."""

    seed: Annotated[int, Meta(ge=0)]
    temperature: Annotated[float, Meta(ge=0, le=1e38)] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: Token = 0  # 0: no limit
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    frequency_penalty: Annotated[float, Meta(ge=-1e3, le=1e3)] = 0.0
    presence_penalty: Annotated[float, Meta(ge=-1e3, le=1e3)] = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0, le=1e3)] = 1.0
    logit_bias: dict[Token, Annotated[float, Meta(ge=-1e3, le=1e3)]] = {}
    min_tokens: Token = 0  # end tokens and stop ids cannot be drawn before this many tokens
    ignore_eos: bool = False  # the model's end tokens do not end the sequence; stop_token_ids still do
    stop_token_ids: tuple[Token, ...] = ()
    logprobs: Annotated[int, Meta(ge=0, le=1024)] | None = (
        None  # None: none; 0: of the token itself; k: and of the k likeliest
    )
    constraint: Constraint | None = None
    allowed_token_ids: tuple[Token, ...] = ()  # no others are drawn; empty: all may be
    bad_words: tuple[Annotated[tuple[Token, ...], Meta(min_length=1)], ...] = ()  # are not generated
    # As `logprobs`, of the prompt's tokens: all of the prompt is computed for it, whatever is cached.
    prompt_logprobs: Annotated[int, Meta(ge=0, le=1024)] | None = None


class Request(Struct, frozen=True):
    """All that is needed to run a request. Choice `i * n + k` is the k-th sequence of `prompts[i]`."""

    id: Identity  # the system's own, 128 random bits in hex
    gateway: Identity  # whose `out` stream gets the answer
    model: Name
    prompts: tuple[tuple[Token, ...], ...]  # token ids, each prompt at least one
    sampling: Sampling
    arrival: Time  # at the gateway
    n: Annotated[int, Meta(ge=0, le=1024)] = 1
    # Per choice. None: what is left of the context or the pool; 0: none is wanted, and the one that the
    # prompt's last row brings is for nobody.
    max_tokens: Token | None = None
    priority: Annotated[int, Meta(ge=-_INT32, le=_INT32)] = 0  # lower runs earlier
    cache_salt: str = ""  # prefix hits only among equal salts
    tenant: str = ""
    deadline: Time | None = None  # past it the request is refused
    traceparent: str = ""  # W3C trace context of the gateway's `chat` span
    life: Count = 0  # how often it was taken up again after it was parked
    ended: tuple[Count, ...] = ()  # choices that a stop string ended in an earlier life: they run no more
    resumed: bool = False  # it was accepted before: load is no reason to refuse it
    fingerprint: Name = ""  # of what it ran on before; such a replica is preferred
    v: int = SCHEMA


class Cancel(Struct, frozen=True):
    """Ends a request (`choice` None) or one choice of it. Sent to admission and to every scheduler.

    With `park` it ends for now: what it has brought stays in its record, and the same request, submitted
    again with a higher `life`, goes on from there. As it may come late it touches no life above its own.
    """

    request: Identity
    choice: Count | None = None
    reason: str = ""
    traceparent: str = ""
    park: bool = False
    life: Count = 0
    v: int = SCHEMA


class TokenLogprob(Struct, frozen=True, array_like=True):
    """Natural logarithms of probabilities at one position, before temperature and filters."""

    logprob: float
    rank: int  # 1 is the likeliest
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), likeliest first


class Tokens(Struct, frozen=True, array_like=True):
    """What one step brought for one choice. `position` counts the choice's output tokens from 0.

    A journalled position never changes. `finish` is set once, on the last item of the choice, whose
    `tokens` may be empty (a cancel, an error).
    """

    request: str
    choice: Count
    position: Count
    tokens: tuple[Token, ...]
    finish: str | None = (
        None  # "stop", "length", "cancelled", "error", "impossible" (nothing was left to draw)
    )
    stop_token: int | None = None  # the end token or stop id that ended it; it is the last of `tokens`
    cached: int = 0  # prompt tokens taken from the prefix index when the choice was first scheduled
    logprobs: tuple[TokenLogprob, ...] | None = None  # one for each of `tokens` where asked for
    error: str | None = None
    # Where asked for, with position 0: of the prompt's tokens but the first, see pillion.contracts.packed.
    prompt_logprobs: bytes | None = None


class Rate(Struct, frozen=True, array_like=True):
    """How a tenant stands with one of its limits."""

    kind: str  # "requests" or "tokens", a minute
    limit: Count
    left: Count
    reset: Amount  # seconds until all of it is left again


class Refusal(Struct, frozen=True):
    """A request that will not run. `status` and the rest are what the client is told."""

    request: str
    status: int  # HTTP
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    retry_after: float | None = None  # seconds
    life: int | None = None  # the only one of the request's that it is for
    rates: tuple[Rate, ...] = ()  # where it is over a limit


class StepOutput(Struct, frozen=True):
    """One entry of a journal or of a gateway's `out` stream: all that one step of one replica brought."""

    replica: str
    epoch: int
    step: int
    items: tuple[Tokens, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    v: int = SCHEMA


class ChoiceRecord(Struct, frozen=True, array_like=True):
    """A choice, folded."""

    tokens: tuple[int, ...]
    finish: str  # as in Tokens; "" where the choice was parked and can go on
    stop_token: int | None = None
    cached: int = 0
    logprobs: tuple[TokenLogprob, ...] | None = None
    error: str | None = None
    prompt_logprobs: bytes | None = None


class Record(Struct, frozen=True):
    """The folded journal of a finished or parked request; kept for a retention time."""

    request: str
    choices: tuple[ChoiceRecord, ...]
    timeline: bytes = b""  # of its last life: a pillion.contracts.timeline.Timeline, encoded
    v: int = SCHEMA

    @property
    def finished(self) -> bool:
        """Whether no choice can go on."""
        return all(choice.finish for choice in self.choices)


class Facts(Struct, frozen=True):
    """What the executor is. The scheduler builds its block pool from these, never from its own settings."""

    model: str  # served name
    fingerprint: str  # weights, dtype, backend build, instruction set, TP size: same bits within one
    max_model_len: Count
    vocab_size: Count
    end_tokens: tuple[Token, ...]
    block_size: Count  # token positions a block
    num_blocks: Count  # block 0 included, which is never given out
    max_num_seqs: Count  # slots
    max_step_tokens: Count
    tile: Count  # rows
    dtype: str
    backend: str
    tp: int = 1
    pp: int = 1  # stages, at least one; as many plans run at once
    backend_reason: str = ""  # why this backend; for people
    grammars: Count = 0  # places for constraints that are compiled before their sequences take slots


class Heartbeat(Struct, frozen=True):
    """A replica's word on itself: on change, at most every 50 ms, at least every second."""

    replica: Identity
    epoch: Count
    state: str  # "ready", "unready", "draining", "gone" (what it has left can be taken)
    reason: str = ""  # why it is not ready
    facts: Facts | None = None
    last_entry: EntryId = "0-0"  # the last run entry that it consumed
    uncomputed: Count = 0  # prompt tokens accepted and not yet computed
    credit: Count = 0  # the most uncomputed prompt tokens that it wants to hold
    prefill_rate: Amount = 0.0  # prompt tokens/s beside the running decodes; 0: not known yet
    running: Count = 0  # sequences
    waiting: Count = 0
    free_blocks: Count = 0
    kv_usage: Annotated[float, Meta(ge=0, le=1)] = 0.0  # 0..1, blocks that running sequences reference
    steps: Count = 0  # completed; readiness follows their progress
    stalled: Amount = 0.0  # seconds that the oldest step in flight is overdue
    seats: Count = 0  # sequences that can run at once within --slo-tbt; 0: not known yet
    step_seconds: Amount = 0.0  # of a full step, predicted
    idle_rate: Amount = 0.0  # prefill_rate as it would be with nothing running
    generation: Name = ""  # of Redis' data: all that it holds stands there
    controlled: EntryId = "0-0"  # the last entry of its control stream that it followed
    step_limit: Count = 0  # most tokens a step
    step_target: Amount = 0.0  # seconds that a step with decodes may take; 0: any
    step_budget: Count = 0  # tokens that the latest step was allowed
    prefilled: Count = 0  # prompt tokens computed: a total since the process started, as the next three
    decoded: Count = 0  # tokens
    step_time: Amount = 0.0  # seconds of the completed steps
    preemptions: Count = 0
    prefix_queried: Count = 0  # prompt tokens asked of the prefix index: a total as above
    prefix_hit: Count = 0  # of these found
    v: int = SCHEMA


class Queue(Struct, frozen=True):
    """What waits in admission; told once a second, for people."""

    waiting: dict[Name, Count]  # requests by level of priority, the first to go first
    tokens: Count = 0  # of their prompts
    v: int = SCHEMA


class StepLimits(Struct, frozen=True):
    """What an administrator wants of a replica's steps; None: as configured."""

    tokens: Annotated[int, Meta(ge=1, le=_INT32)] | None = None  # the most that a step computes
    target: Annotated[float, Meta(gt=0, le=3600)] | None = None  # seconds that one with decodes may take


class Control(Struct, frozen=True):
    """An administrator's word to a replica; what is None stays as it is. All ends with the process."""

    epoch: Count  # of the lease's holder that it is for: no other follows it
    draining: bool | None = None  # no new work is to come, what is there goes on
    flush: bool = False  # forget the prefixes that are cached
    limits: StepLimits | None = None  # in the place of any before
    explain: str = ""  # a request whose timeline is to be told, under `Keys.explained`
    v: int = SCHEMA


class Spent(Struct, frozen=True, array_like=True):
    """What a request that ended has used, over all its choices."""

    request: Identity
    prompt: Count = 0  # tokens computed: those found in the prefix index are not among them
    output: Count = 0  # tokens


class Usage(Struct, frozen=True):
    """One entry of the `usage` stream: what a step of a replica means for admission's accounts."""

    replica: Identity
    first: tuple[tuple[Identity, Amount], ...] = ()  # request, seconds from arrival to first token
    ended: tuple[Spent, ...] = ()
    queued: tuple[
        tuple[Identity, Amount], ...
    ] = ()  # of those in `first`: seconds from arrival to first step
    v: int = SCHEMA


_ENCODER = msgspec.msgpack.Encoder()


def encode(entry: Struct) -> bytes:
    return _ENCODER.encode(entry)


class _Version(msgspec.Struct):
    v: int = SCHEMA


_version = msgspec.msgpack.Decoder(_Version)
_decoders: dict[type, msgspec.msgpack.Decoder[Any]] = {}


def decode(data: bytes, kind: type[T]) -> T:
    """Raises UnknownSchema for another version, msgspec.DecodeError for what is no entry."""
    # `v` at its default is omitted, so an absent one means version 1, the first; later releases write it.
    version = _version.decode(data).v
    if not OLDEST <= version <= SCHEMA:
        known = str(SCHEMA) if OLDEST == SCHEMA else f"{OLDEST} to {SCHEMA}"
        raise UnknownSchema(f"{kind.__name__} has schema version {version}, this release reads {known}")
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    result: T = decoder.decode(data)
    return result
