"""Ends a request for good, wherever it is."""

from aiohttp import web

from pillion.gateway.plain import answer
from pillion.gateway.resume import find
from pillion.gateway.state import State


async def cancel(state: State, identity: str, tenant: str | None) -> web.Response:
    """`tenant` None: whosesoever it is. Raises ApiError: 404, 503."""
    call = state.calls.get(identity)
    if call is None or tenant not in (None, call.request.tenant):
        standing = await find(state, identity, tenant)
        if standing.finished:
            return answer({"id": identity, "status": standing.end})
    state.cancel(identity)
    return answer({"id": identity, "status": "cancelling"}, 202)
