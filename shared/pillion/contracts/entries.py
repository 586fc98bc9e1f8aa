"""Entries of the Redis streams, as frozen msgspec structs in MessagePack.

Every entry that is stored carries `v`, the schema version. `decode` refuses what it does not know, so that
the reader can set the entry aside instead of guessing.
"""

from typing import Any, TypeVar

import msgspec

SCHEMA = 1

T = TypeVar("T")


class UnknownSchema(ValueError):
    """The entry was written by a release whose schema this one cannot read."""


class Struct(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of all entries: frozen; fields at their default take no bytes."""


class Sampling(Struct, frozen=True):
    """How a token is drawn from one position's logits. The draw depends on (seed, choice, position) only."""

    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    min_tokens: int = 0  # end tokens and stop ids cannot be drawn before this many tokens
    ignore_eos: bool = False  # the model's end tokens do not end the sequence; stop_token_ids still do
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None  # None: none; 0: of the token itself; k: and of the k likeliest


class Request(Struct, frozen=True):
    """All that is needed to run a request. Choice `i * n + k` is the k-th sequence of `prompts[i]`."""

    id: str  # the system's own, 128 random bits in hex
    gateway: str  # whose `out` stream gets the answer
    model: str
    prompts: tuple[tuple[int, ...], ...]  # token ids, each prompt at least one
    sampling: Sampling
    arrival: float  # seconds since the epoch, at the gateway
    n: int = 1
    max_tokens: int | None = None  # per choice; None: what is left of the context or the pool
    priority: int = 0  # lower runs earlier
    cache_salt: str = ""  # prefix hits only among equal salts
    tenant: str = ""
    deadline: float | None = None  # seconds since the epoch; past it the request is refused
    traceparent: str = ""  # W3C trace context of the gateway's `chat` span
    v: int = SCHEMA


class Cancel(Struct, frozen=True):
    """Ends a request (`choice` None) or one choice of it. Sent to admission and to every scheduler."""

    request: str
    choice: int | None = None
    reason: str = ""
    traceparent: str = ""
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
    choice: int
    position: int
    tokens: tuple[int, ...]
    finish: str | None = None  # "stop", "length", "cancelled", "error"
    stop_token: int | None = None  # the end token or stop id that ended it; it is the last of `tokens`
    cached: int = 0  # prompt tokens taken from the prefix index when the choice was first scheduled
    logprobs: tuple[TokenLogprob, ...] | None = None  # one for each of `tokens` where asked for
    error: str | None = None


class Refusal(Struct, frozen=True):
    """A request that will not run. `status` and the rest are what the client is told."""

    request: str
    status: int  # HTTP
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    retry_after: float | None = None  # seconds


class StepOutput(Struct, frozen=True):
    """One entry of a journal or of a gateway's `out` stream: all that one step of one replica brought."""

    replica: str
    epoch: int
    step: int
    items: tuple[Tokens, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    v: int = SCHEMA


class ChoiceRecord(Struct, frozen=True, array_like=True):
    """A finished choice, folded."""

    tokens: tuple[int, ...]
    finish: str
    stop_token: int | None = None
    cached: int = 0
    logprobs: tuple[TokenLogprob, ...] | None = None
    error: str | None = None


class Record(Struct, frozen=True):
    """The folded journal of a finished request; kept for a retention time."""

    request: str
    choices: tuple[ChoiceRecord, ...]
    v: int = SCHEMA


class Facts(Struct, frozen=True):
    """What the executor is. The scheduler builds its block pool from these, never from its own settings."""

    model: str  # served name
    fingerprint: str  # weights, dtype, backend build, instruction set, TP size: same bits within one
    max_model_len: int
    vocab_size: int
    end_tokens: tuple[int, ...]
    block_size: int  # token positions a block
    num_blocks: int  # block 0 included, which is never given out
    max_num_seqs: int  # slots
    max_step_tokens: int
    tile: int  # rows
    dtype: str
    backend: str
    tp: int = 1
    pp: int = 1
    backend_reason: str = ""  # why this backend; for people


class Heartbeat(Struct, frozen=True):
    """A replica's word on itself: on change, at most every 50 ms, at least every second."""

    replica: str
    epoch: int
    state: str  # "ready", "unready", "draining"
    reason: str = ""  # why it is not ready
    facts: Facts | None = None
    last_entry: str = "0-0"  # the last run entry that it consumed
    uncomputed: int = 0  # prompt tokens accepted and not yet computed
    credit: int = 0  # the most uncomputed prompt tokens that it wants to hold
    prefill_rate: float = 0.0  # prompt tokens/s, measured
    running: int = 0  # sequences
    waiting: int = 0
    free_blocks: int = 0
    kv_usage: float = 0.0  # 0..1, blocks that running sequences reference
    steps: int = 0  # completed; readiness follows their progress
    stalled: float = 0.0  # seconds that the oldest step in flight is overdue
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
    if version != SCHEMA:
        raise UnknownSchema(f"{kind.__name__} has schema version {version}, this release reads {SCHEMA}")
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    result: T = decoder.decode(data)
    return result
