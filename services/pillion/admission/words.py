"""What admission says to a gateway."""

from pillion.admission.line import Waiting
from pillion.contracts.entries import Refusal, StepOutput, Tokens, encode


def refused(refusal: Refusal, epoch: int) -> bytes:
    """The entry of the gateway's `out` stream. Admission is no replica and runs no steps: both are empty."""
    return encode(StepOutput(replica="", epoch=epoch, step=0, refusals=(refusal,)))


def cancelled(waiting: Waiting, epoch: int) -> bytes:
    """The last item of each choice of a request that was cancelled before it ran."""
    items = tuple(
        Tokens(waiting.request.id, choice, position=0, tokens=(), finish="cancelled")
        for choice in range(waiting.choices)
    )
    return encode(StepOutput(replica="", epoch=epoch, step=0, items=items))
