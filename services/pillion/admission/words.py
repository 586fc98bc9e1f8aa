"""What admission reads and what it says: entries to events, actions to answers."""

from dataclasses import dataclass

import msgspec

from pillion.admission import limits
from pillion.admission.line import Waiting
from pillion.bus import MAX_DELIVERIES, Entry
from pillion.contracts.entries import Refusal, Request, StepOutput, Tokens, UnknownSchema, decode, encode


@dataclass(frozen=True, slots=True)
class Dead:
    """An entry to set aside. `gateway` and `refusal` are there where its sender could be made out."""

    entry: Entry
    reason: str  # for the log
    gateway: str = ""
    refusal: Refusal | None = None


class _Sender(msgspec.Struct):
    """As much of a request as every release writes."""

    id: str
    gateway: str


_sender = msgspec.msgpack.Decoder(_Sender)


def read(entry: Entry) -> Request | Dead:
    """The entry's request, or why there is none."""
    try:
        request = decode(entry.payload, Request)
    except (UnknownSchema, msgspec.DecodeError) as error:
        try:
            sender = _sender.decode(entry.payload)
        except msgspec.DecodeError:
            return Dead(entry, f"cannot be read: {error}")
        return Dead(
            entry, f"cannot be read: {error}", sender.gateway, limits.unreadable(sender.id, str(error))
        )
    if entry.deliveries > MAX_DELIVERIES:
        refusal = limits.given_up(request.id, MAX_DELIVERIES)
        return Dead(entry, f"was delivered {entry.deliveries} times", request.gateway, refusal)
    return request


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
