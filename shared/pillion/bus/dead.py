"""Entries that are set aside: nobody can read them, or whoever held them died. Pure."""

from dataclasses import dataclass

import msgspec

from pillion.bus.streams import MAX_DELIVERIES, Entry
from pillion.contracts.entries import Refusal, Request, UnknownSchema, decode


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


def read_request(entry: Entry, attempts: str) -> Request | Dead:
    """The entry's request, or why there is none. `attempts`: what its holders tried, as `to run it`."""
    try:
        request = decode(entry.payload, Request)
    except (UnknownSchema, msgspec.DecodeError) as error:
        reason = f"cannot be read: {error}"
        try:
            sender = _sender.decode(entry.payload)
        except msgspec.DecodeError:
            return Dead(entry, reason)
        message = f"the request could not be read: {error}"
        return Dead(entry, reason, sender.gateway, _refusal(sender.id, message, "unreadable_request"))
    if entry.deliveries > MAX_DELIVERIES:
        message = f"the request was given up after {MAX_DELIVERIES} attempts {attempts}"
        refusal = _refusal(request.id, message, "poison_request")
        return Dead(entry, f"was delivered {entry.deliveries} times", request.gateway, refusal)
    return request


def _refusal(request: str, message: str, code: str) -> Refusal:
    return Refusal(request, 500, message, type="server_error", code=code)
