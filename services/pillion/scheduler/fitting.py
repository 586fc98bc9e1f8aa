"""What can never run on an executor is refused, and does not wait."""

from pillion.contracts.entries import Facts, Refusal, Request


def most_tokens(facts: Facts) -> int:
    """Of a sequence, prompt and output, that executor and pool can hold.

    The last token is never computed, so it needs no KV.
    """
    return min(facts.max_model_len, _positions(facts) + 1)


def refuse(request: Request, facts: Facts) -> Refusal | None:
    """Why it can never run there; None where it can."""
    output = request.max_tokens
    limit = most_tokens(facts) if output != 0 else min(facts.max_model_len, _positions(facts))
    longest = max((len(prompt) for prompt in request.prompts), default=0)
    if not all(request.prompts) or not longest:
        return Refusal(request.id, 400, "the prompt is empty; give at least one token", param="prompt")
    if longest + (1 if output is None else output) <= limit:
        return None
    why = "" if limit == facts.max_model_len else ", what its KV cache can hold"
    rest = "; one must be left" if output is None else f" and max_tokens is {output}"
    return Refusal(
        request.id,
        400,
        f"this model takes at most {limit} tokens, prompt and output together{why}; the prompt has "
        f"{longest}{rest}",
        param="prompt" if longest >= limit else "max_tokens",
        code="context_length_exceeded",
    )


def _positions(facts: Facts) -> int:
    """That the pool holds; block 0 is never given out."""
    return (facts.num_blocks - 1) * facts.block_size
