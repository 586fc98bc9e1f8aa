"""Tells why a request took so long: from its record once it ended or is parked, else its replica is asked."""

import asyncio

import msgspec
from aiohttp import web

from pillion import clock
from pillion.bus import UNREACHABLE
from pillion.contracts.entries import Control, UnknownSchema, decode
from pillion.contracts.timeline import Timeline
from pillion.gateway.explanation import explanation
from pillion.gateway.heads import Standing
from pillion.gateway.plain import answer
from pillion.gateway.protocol.errors import ApiError, bus_gone, unavailable
from pillion.gateway.resume import find
from pillion.gateway.state import State

PATIENCE = 3.0  # seconds for a replica's answer
LOOK = 0.02  # seconds between two looks


async def explain(state: State, identity: str, tenant: str | None) -> web.Response:
    """`tenant` None: whosesoever it is. Raises ApiError: 404, 503."""
    patience, asked = clock.monotonic() + PATIENCE, ""
    while clock.monotonic() < patience:
        standing = await find(state, identity, tenant)
        if standing.finished or standing.parked:
            status = standing.end if standing.finished else "parked"
            return answer(explanation(status, _kept(standing), standing.told))
        try:
            payload, holder = await state.connections["read"].pipeline(
                ("GET", state.names.explained(identity)), ("GET", state.names.holder(identity))
            )
            if payload is not None and asked:
                call = state.calls.get(identity)  # another gateway tells when its connection ends
                delivery = None if call is None else call.delivery()
                return answer(explanation("running", _decoded(payload), delivery))
            replica = "" if holder is None else holder.decode()
            if not replica:
                return answer(_waits(standing))
            if replica != asked and (beat := state.replicas.last(replica)) is not None:
                await state.connections["read"].call("DEL", state.names.explained(identity))
                await state.outbox.control(replica, Control(beat.epoch, explain=identity))
                asked = replica
        except UNREACHABLE:
            raise bus_gone() from None
        await asyncio.sleep(LOOK)
    raise unavailable(
        "no_answer", "The request's replica does not tell of it, or was started again. Try again."
    )


def _kept(standing: Standing) -> Timeline:
    """Raises ApiError (404) where the request has none, and says why."""
    if standing.record is not None and standing.record.timeline:
        return _decoded(standing.record.timeline)
    if standing.refused is not None:
        word = standing.refused
        raise ApiError(
            404, f"It never ran: it was refused with {word.status}, {word.message}", code="not_found"
        )
    if standing.cancelled or standing.parked:
        raise ApiError(404, "It never ran: its client left or cancelled it before.", code="not_found")
    raise ApiError(404, "Nothing was kept of how it ran.", code="not_found")


def _decoded(payload: bytes) -> Timeline:
    try:
        timeline = decode(payload, Timeline)
    except (UnknownSchema, msgspec.DecodeError):
        timeline = None
    if timeline is None or not timeline.choices:
        raise ApiError(404, "What was kept of how it ran cannot be read here.", code="not_found")
    return timeline


def _waits(standing: Standing) -> dict[str, object]:
    request = standing.head.request
    return {
        "object": "explanation",
        "id": request.id,
        "status": "waiting",
        "replica": None,
        "arrival": request.arrival,
        "seconds": round(max(clock.wall() - request.arrival, 0.0), 6),
        "why": "it waits in admission: no replica has room for its prompt yet",
    }
