"""What can never run, and what the client is told."""

import math
from collections.abc import Iterable

from pillion.admission.tenants import Short
from pillion.contracts.entries import Facts, Rate, Refusal, Request
from pillion.words import counted


def longest(facts: Facts) -> int:
    """Most tokens of a sequence, prompt and output: the last needs no KV, and block 0 is not given out."""
    return min(facts.max_model_len, (facts.num_blocks - 1) * facts.block_size + 1)


def longest_prompt(facts: Facts) -> int:
    """Most tokens of a prompt that no output is wanted of: its last one is computed too."""
    return min(facts.max_model_len, (facts.num_blocks - 1) * facts.block_size)


def need(request: Request) -> int:
    """Tokens of its longest sequence, prompt and output."""
    return max(map(len, request.prompts)) + (1 if request.max_tokens is None else request.max_tokens)


def most(request: Request, facts: Facts) -> int:
    """That it may need there."""
    return longest_prompt(facts) if request.max_tokens == 0 else longest(facts)


def fits(request: Request, facts: Facts) -> bool:
    """Whether each of its sequences can run alone on a replica with these facts."""
    return need(request) <= most(request, facts)


def malformed(request: Request) -> Refusal | None:
    """What no replica of any size could run."""
    if not request.prompts or not all(request.prompts):
        return _invalid(request, "the prompt is empty; give at least one token", "prompt")
    if request.max_tokens is not None and request.max_tokens < 0:
        return _invalid(request, f"max_tokens is {request.max_tokens}; it must be at least 0", "max_tokens")
    if request.n < 1:
        return _invalid(request, f"n is {request.n}; it must be at least 1", "n")
    return None


def too_long(request: Request, replicas: Iterable[Facts]) -> Refusal:
    """For a request that fits none of the replicas of its model: names the parameter and the true limits."""
    facts = max(replicas, key=longest)
    limit, prompt = most(request, facts), max(map(len, request.prompts))
    if limit < facts.max_model_len:
        blocks = facts.num_blocks - 1
        why = f", what its KV cache of {blocks} blocks of {facts.block_size} can hold"
    else:
        why = ""
    asked = (
        "one must be left for the output"
        if request.max_tokens is None
        else f"max_tokens is {request.max_tokens}"
    )
    return _invalid(
        request,
        f"{request.model} takes at most {limit} tokens, prompt and output together{why}; "
        f"the prompt has {prompt}, {asked}",
        "prompt" if prompt >= limit else "max_tokens",
        "context_length_exceeded",
    )


def unknown_model(request: Request, models: Iterable[str]) -> Refusal:
    served = ", ".join(sorted(models))
    message = f"the model {request.model!r} is not served here; there is {served}"
    return Refusal(request.id, 404, message, "invalid_request_error", "model", "model_not_found")


def too_late(request: Request) -> Refusal:
    message = "the request's deadline passed before a replica had room for it"
    return Refusal(request.id, 504, message, "timeout_error", code="deadline_exceeded")


def queue_full(request: Request, waiting: int, tokens: int, rate: float) -> Refusal:
    """`tokens` wait; `rate` are computed a second. The time to come back is when they are through."""
    seconds = _seconds(tokens / rate) if rate > 0 else 5.0
    message = f"{counted(waiting, 'request')} waiting already, and no more may; try again in {seconds:.0f} s"
    return Refusal(request.id, 429, message, "overloaded_error", code="queue_full", retry_after=seconds)


_TOLD = {
    "rpm": "requests a minute",
    "tpm": "tokens a minute, prompt and output",
    "concurrency": "sequences that wait or run at once",
}


def over_limit(request: Request, short: Short, rates: tuple[Rate, ...]) -> Refusal:
    seconds = _seconds(short.retry_after)
    message = f"the limit is {short.most} {_TOLD[short.limit]}; this fits in {seconds:.0f} s"
    code = f"tenant_{short.limit}"
    return Refusal(request.id, 429, message, "rate_limit_error", code=code, retry_after=seconds, rates=rates)


def ttft_missed(request: Request, ttft: float, target: float, excess: float) -> Refusal:
    """Predicted to miss the target of the time to first token."""
    seconds = _seconds(excess)
    message = (
        f"the first token would come after about {ttft:.1f} s, and {target:g} s is the target; "
        f"try again in {seconds:.0f} s"
    )
    return Refusal(request.id, 429, message, "overloaded_error", code="predicted_ttft", retry_after=seconds)


def deadline_missed(request: Request, ttft: float, left: float, excess: float) -> Refusal:
    """Predicted to miss its own deadline."""
    seconds = _seconds(excess)
    message = (
        f"the first token would come after about {ttft:.1f} s, and the request's deadline is in {left:.1f} s;"
        f" try again in {seconds:.0f} s"
    )
    code = "predicted_deadline"
    return Refusal(request.id, 429, message, "overloaded_error", code=code, retry_after=seconds)


def _seconds(wait: float) -> float:
    """A time to come back: whole seconds, at least one, and a minute where it is longer."""
    return float(min(60, max(1, math.ceil(wait))))


def _invalid(request: Request, message: str, param: str, code: str | None = None) -> Refusal:
    return Refusal(request.id, 400, message, param=param, code=code)
