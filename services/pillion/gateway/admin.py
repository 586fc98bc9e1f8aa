"""What administrators see and do, behind a key of their own. Replicas are told over the bus, and confirm."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from pillion import clock
from pillion.bus import UNREACHABLE
from pillion.contracts.entries import Control, Heartbeat, StepLimits
from pillion.gateway.cancelling import cancel
from pillion.gateway.explain import explain
from pillion.gateway.fields import BUDGET, read
from pillion.gateway.live import Live, live
from pillion.gateway.plain import answer, identity
from pillion.gateway.protocol import body, values
from pillion.gateway.protocol.errors import ApiError, bad, bus_gone, unavailable
from pillion.gateway.state import State
from pillion.gateway.status import Board

log = logging.getLogger(__name__)

PATIENCE = 5.0  # seconds for a replica to confirm
LOOK = 0.02  # seconds between two looks
LISTED = 100  # requests, where no other limit is asked for
MOST_LISTED = 1000

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Routes = dict[str, Mapping[str, Handler]]


class Admin:
    """Handlers for authorised requests."""

    def __init__(self, state: State, raw: Callable[[web.Request], Awaitable[bytes]], board: Board) -> None:
        """`raw` reads a JSON body."""
        self._state = state
        self._board = board
        self._raw = raw

    @property
    def routes(self) -> Routes:
        return {
            "/admin/v1/requests": {"GET": self._requests},
            "/admin/v1/replicas": {"GET": self._replicas},
            "/admin/v1/status": {"GET": self._status},
        }

    @property
    def patterns(self) -> Routes:
        """Routes that name what is meant. The first that fits counts."""
        return {
            "/admin/v1/requests/{id}/explain": {"GET": self._explain},
            "/admin/v1/requests/{id}": {"DELETE": self._cancel},
            "/admin/v1/drains/{id}": {"PUT": self._drain, "DELETE": self._drain},
            "/admin/v1/budgets/{id}": {"PUT": self._budget, "DELETE": self._budget},
            "/admin/v1/prefixes/{id}": {"DELETE": self._flush},
        }

    # --- requests ----------------------------------------------------------------------------------

    async def _requests(self, http: web.Request) -> web.Response:
        limit = _limit(http.query.get("limit"))
        listed: list[Live] = []
        names = [str(row["replica"]) for row in self._state.replicas.describe(clock.monotonic())]
        try:
            async for one in live(self._state.connections["read"], self._state.names, names):
                if len(listed) == limit:
                    return answer(
                        {"object": "list", "data": [_request(row) for row in listed], "has_more": True}
                    )
                listed.append(one)
        except UNREACHABLE:
            raise bus_gone() from None
        return answer({"object": "list", "data": [_request(row) for row in listed], "has_more": False})

    async def _cancel(self, http: web.Request) -> web.Response:
        name = identity(http.path)
        log.info("an administrator cancels request %s", name)
        return await cancel(self._state, name, None)

    async def _explain(self, http: web.Request) -> web.Response:
        return await explain(self._state, identity(http.path.rstrip("/").removesuffix("/explain")), None)

    # --- replicas ----------------------------------------------------------------------------------

    async def _replicas(self, http: web.Request) -> web.Response:
        rows = self._state.replicas.describe(clock.monotonic())
        return answer({"object": "list", "data": [self._replica(str(row["replica"]), row) for row in rows]})

    async def _status(self, http: web.Request) -> web.Response:
        return answer(await self._board.status(None))

    async def _drain(self, http: web.Request) -> web.Response:
        return await self._tell(http, lambda beat: Control(beat.epoch, draining=http.method == "PUT"))

    async def _flush(self, http: web.Request) -> web.Response:
        return await self._tell(http, lambda beat: Control(beat.epoch, flush=True))

    async def _budget(self, http: web.Request) -> web.Response:
        asked: dict[str, Any] = {}
        if http.method == "PUT":
            asked = read(body.parse(await self._raw(http)), BUDGET)
        tokens, target = asked.get("max_num_batched_tokens"), asked.get("slo_tbt")

        def word(beat: Heartbeat) -> Control:
            most = beat.facts.max_step_tokens if beat.facts else values.INT32
            if tokens is not None and tokens > most:
                raise bad(
                    "max_num_batched_tokens",
                    f"max_num_batched_tokens must be at most {most}, what the executor takes.",
                    "out_of_range",
                )
            return Control(beat.epoch, limits=StepLimits(tokens, target))

        return await self._tell(http, word)

    async def _tell(self, http: web.Request, word: Callable[[Heartbeat], Control]) -> web.Response:
        """Answers with the replica as it is once it has followed. Raises ApiError: 404, 503."""
        name = http.path.rstrip("/").rpartition("/")[2]
        beat = self._state.replicas.last(name)
        if beat is None:
            raise ApiError(404, "There is no replica of this name.", code="not_found")
        control = word(beat)
        entry = await self._state.outbox.control(name, control)
        log.info("an administrator tells replica %s: %s %r", name, http.method, http.path)
        patience = clock.monotonic() + PATIENCE
        while beat is not None and beat.epoch == control.epoch and clock.monotonic() < patience:
            if _place(beat.controlled) >= _place(entry):
                now = clock.monotonic()
                row = next(row for row in self._state.replicas.describe(now) if row["replica"] == name)
                return answer(self._replica(name, row))
            await asyncio.sleep(LOOK)
            beat = self._state.replicas.last(name)
        raise unavailable("no_answer", "The replica does not confirm, or was started again. Try again.")

    def _replica(self, name: str, row: Mapping[str, object]) -> dict[str, object]:
        beat = self._state.replicas.last(name)
        assert beat is not None, "it was described"
        return {
            **row,
            "model": beat.facts.model if beat.facts else None,
            "max_num_batched_tokens": beat.step_limit or None,
            "slo_tbt": beat.step_target or None,
            "kv_usage": round(beat.kv_usage, 4),
        }


def _request(one: Live) -> dict[str, object]:
    request = one.request
    return {
        "id": request.id,
        "tenant": request.tenant,
        "model": request.model,
        "replica": one.replica,
        "gateway": request.gateway,
        "arrival": request.arrival,
        "age_seconds": round(max(clock.wall() - request.arrival, 0.0), 3),
        "priority": request.priority,
        "choices": request.n * len(request.prompts),
        "prompt_tokens": sum(map(len, request.prompts)),
        "max_tokens": request.max_tokens,
    }


def _limit(text: str | None) -> int:
    if text is None:
        return LISTED
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= MOST_LISTED):
        raise bad("limit", f"limit must be a whole number from 1 to {MOST_LISTED}.", "out_of_range")
    return int(text)


def _place(entry: str) -> tuple[int, int]:
    """Entry ids compare as pairs of numbers."""
    milliseconds, _, sequence = entry.partition("-")
    return int(milliseconds), int(sequence)
