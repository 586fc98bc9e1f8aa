"""From the neutral record and the prompts' token ids to the entry that admission reads."""

from collections.abc import Sequence
from dataclasses import dataclass

from pillion.contracts.entries import Request, Sampling
from pillion.gateway.protocol.errors import bad, contradiction
from pillion.gateway.protocol.request import Generation, Output, Texts, Wishes
from pillion.modelfiles import SamplingDefaults

_SEED_MASK = (1 << 63) - 1
MOST_SCORED = 1 << 17
"""Log-probabilities of prompt tokens that a request may get, alternatives included: 8 bytes each are kept."""
MOST_STREAMED = 1 << 13
"""In a stream, where they are one event: while it is made all others wait, ten milliseconds a thousand."""

MOST_FORBIDDEN = 1 << 18
"""Tokens of bad words, of all choices: each takes its own to the executor, and the steps wait for it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the served model can hold."""

    max_model_len: int  # tokens a sequence, prompt and output
    vocab_size: int
    max_choices: int  # sequences a request
    end_tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Envelope:
    """What the gateway adds to a request of its own."""

    id: str
    gateway: str
    model: str
    arrival: float  # seconds since the epoch
    deadline: float
    seed: int  # where the client gave none
    tenant: str = ""
    traceparent: str = ""


def entry(
    asked: Generation,
    prompts: Sequence[Sequence[int]],
    limits: Limits,
    defaults: SamplingDefaults,
    envelope: Envelope,
    bad_words: tuple[tuple[int, ...], ...] = (),
) -> Request:
    """Checks what depends on the model, and builds the entry. Raises ApiError (400).

    `bad_words` are those asked for as token ids.
    """
    _vocabulary(asked, prompts, limits)
    max_tokens = asked.max_tokens
    if max_tokens is None:
        max_tokens = defaults.max_tokens
        # A default never makes a request too long; the client did not ask for so many.
        if max_tokens is not None:
            longest = max(map(len, prompts), default=0)
            max_tokens = max(1, min(max_tokens, limits.max_model_len - longest))
    _context(asked, prompts, limits)
    _scored(asked.output, prompts)
    _forbidden(len(prompts) * asked.output.n, bad_words)
    _drawable(asked.wishes, limits, bad_words, constrained=asked.shape is not None)
    return Request(
        id=envelope.id,
        gateway=envelope.gateway,
        model=envelope.model,
        prompts=tuple(tuple(prompt) for prompt in prompts),
        sampling=_sampling(asked, defaults, envelope.seed, bad_words),
        arrival=envelope.arrival,
        n=asked.output.n,
        max_tokens=max_tokens,
        priority=asked.priority,
        cache_salt=asked.cache_salt,
        tenant=envelope.tenant,
        deadline=envelope.deadline,
        traceparent=envelope.traceparent,
    )


def cut(asked: Generation, prompts: Sequence[Sequence[int]], limits: Limits) -> tuple[tuple[int, ...], ...]:
    """The prompts, each with no more tokens than the request wants of it. Raises ApiError (400)."""
    keep, room = asked.keep, limits.max_model_len - _wanted(asked)
    if keep is None or room < 1:
        return tuple(map(tuple, prompts))
    most = room if keep.tokens == -1 else keep.tokens
    if most > room:
        raise bad(
            "truncate_prompt_tokens",
            f"truncate_prompt_tokens must be at most {room}: this server takes at most "
            f"{limits.max_model_len} tokens, and {_wanted(asked)} are for the output.",
            "context_length_exceeded",
        )
    return tuple(tuple(prompt[-most:] if keep.last else prompt[:most]) for prompt in prompts)


def _wanted(asked: Generation) -> int:
    """Output tokens that there must be room for."""
    return max(1, asked.wishes.min_tokens) if asked.max_tokens is None else asked.max_tokens


def choices(asked: Generation, limits: Limits) -> None:
    """Checks how many are asked for, before any prompt takes time. Raises ApiError (400)."""
    prompts = len(asked.prompt.texts or asked.prompt.ids) if isinstance(asked.prompt, Texts) else 1
    if prompts * asked.output.n > limits.max_choices:
        param = "n" if asked.output.n > limits.max_choices or prompts == 1 else "prompt"
        raise bad(
            param,
            f"The request asks for {prompts * asked.output.n} choices (prompts times n); "
            f"at most {limits.max_choices} are allowed.",
            "out_of_range",
        )


def _vocabulary(asked: Generation, prompts: Sequence[Sequence[int]], limits: Limits) -> None:
    size = limits.vocab_size
    for param, ids in (
        ("logit_bias", asked.wishes.logit_bias),
        ("stop_token_ids", asked.wishes.stop_token_ids),
        ("allowed_token_ids", asked.wishes.allowed_token_ids),
        *(("prompt", prompt) for prompt in prompts),
    ):
        if ids and max(ids) >= size:
            raise bad(
                param,
                f"{param} holds token id {max(ids)}, outside the vocabulary of {size} tokens.",
                "out_of_range",
            )


def _context(asked: Generation, prompts: Sequence[Sequence[int]], limits: Limits) -> None:
    """A prompt needs room for at least one token, and for all that were asked for, which may be none."""
    form = "messages" if asked.output.form == "chat" else "prompt"
    for prompt in prompts:
        if not prompt:
            raise bad(form, f"{form} gives no tokens.", "empty_string")
        wanted = _wanted(asked)
        room = wanted < limits.max_model_len  # for some prompt
        if len(prompt) + wanted <= limits.max_model_len:
            continue
        limit = f"This server takes at most {limits.max_model_len} tokens, prompt and output together"
        if not wanted:
            raise bad(
                form,
                f"{limit}; the prompt has {len(prompt)}. Shorten it, or send truncate_prompt_tokens.",
                "context_length_exceeded",
            )
        if len(prompt) >= limits.max_model_len:
            asks = f", max_tokens asks for {asked.max_tokens} more" if asked.max_tokens else ""
            advice = (
                "or send truncate_prompt_tokens" if room else f"and ask for fewer than {limits.max_model_len}"
            )
            raise bad(
                form,
                f"{limit}; the prompt has {len(prompt)} and leaves no room for an answer{asks}. "
                f"Shorten it, {advice}.",
                "context_length_exceeded",
            )
        param = "max_tokens" if asked.max_tokens else "min_tokens"
        advice = "Shorten the prompt, or ask" if room else "Ask"
        raise bad(
            param,
            f"{limit}; the prompt has {len(prompt)} and {param} asks for {wanted} more. "
            f"{advice} for at most {limits.max_model_len - len(prompt)}.",
            "context_length_exceeded",
        )


def _scored(output: Output, prompts: Sequence[Sequence[int]]) -> None:
    """All that is told of the prompts is held until the answer is sent, and kept with it."""
    if output.scored is None:
        return
    wanted = sum(map(len, prompts)) * output.n * (output.scored + 1)
    most = MOST_STREAMED if output.stream else MOST_SCORED
    if wanted > most:
        in_stream = " in a stream" if output.stream else ""
        raise bad(
            "logprobs" if output.prompt_logprobs is None else "prompt_logprobs",
            f"The request asks for {wanted} log probabilities of prompt tokens (tokens times choices times "
            f"alternatives and the token itself); at most {most} are told{in_stream}. Ask for fewer.",
            "out_of_range",
        )


def _forbidden(choices: int, bad_words: tuple[tuple[int, ...], ...]) -> None:
    tokens = sum(map(len, bad_words)) * choices
    if tokens > MOST_FORBIDDEN:
        raise bad(
            "bad_words",
            f"bad_words come to {tokens} tokens over all choices, each with and without a space in front; "
            f"at most {MOST_FORBIDDEN} are kept. Send fewer or shorter ones, or ask for fewer choices.",
            "out_of_range",
        )


def _drawable(
    wishes: Wishes, limits: Limits, bad_words: tuple[tuple[int, ...], ...], *, constrained: bool
) -> None:
    """Something has to be left that an answer can begin with. A constraint has a say in when it ends."""
    left, fields = set(wishes.allowed_token_ids), ["allowed_token_ids"]
    if not left:
        return
    if left & (words := single(bad_words)):
        left -= words
        fields.append("bad_words")
    if (
        wishes.min_tokens
        and not constrained
        and left & (ends := {*limits.end_tokens, *wishes.stop_token_ids})
    ):
        left -= ends
        fields.append("min_tokens")
    if not left:
        raise contradiction(fields)


def single(words: tuple[tuple[int, ...], ...]) -> set[int]:
    """Those of the words that are one token."""
    return {word[0] for word in words if len(word) == 1}


def _sampling(
    asked: Generation, defaults: SamplingDefaults, seed: int, bad_words: tuple[tuple[int, ...], ...]
) -> Sampling:
    wishes: Wishes = asked.wishes

    def pick(wish: float | None, default: float | None, neutral: float) -> float:
        return wish if wish is not None else neutral if default is None else default

    top_k = wishes.top_k if wishes.top_k is not None else (defaults.top_k or 0)
    return Sampling(
        # A negative seed is as good as any other; the draw takes 63 bits.
        seed=(seed if wishes.seed is None else wishes.seed) & _SEED_MASK,
        temperature=pick(wishes.temperature, defaults.temperature, 1.0),
        top_p=pick(wishes.top_p, defaults.top_p, 1.0),
        top_k=max(0, top_k),
        min_p=pick(wishes.min_p, defaults.min_p, 0.0),
        frequency_penalty=wishes.frequency_penalty,
        presence_penalty=wishes.presence_penalty,
        repetition_penalty=pick(wishes.repetition_penalty, defaults.repetition_penalty, 1.0),
        logit_bias=wishes.logit_bias,
        min_tokens=wishes.min_tokens,
        ignore_eos=wishes.ignore_eos,
        stop_token_ids=wishes.stop_token_ids,
        logprobs=asked.output.logprobs,
        allowed_token_ids=wishes.allowed_token_ids,
        bad_words=bad_words,
        constraint=None if asked.shape is None else asked.shape.constraint,
        prompt_logprobs=asked.output.scored,
    )
