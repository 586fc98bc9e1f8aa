"""What the gateway writes: submits, cancels, and that it lives."""

import asyncio
import logging

from pillion.actors import Mailbox
from pillion.bus import UNREACHABLE, Connection, Keys, TooLong, append_bounded, retrying
from pillion.contracts.entries import Cancel, Request, encode
from pillion.gateway.protocol.errors import ApiError, unavailable

log = logging.getLogger(__name__)

SUBMIT_PATIENCE = 5.0  # seconds that a submit waits for Redis
CANCELS_KEPT = 10_000  # entries of the cancel stream
TOMBSTONE = 3600  # seconds
PRESENCE = 10.0  # seconds after which a gateway that says nothing is gone
OUT_KEPT = 3600  # seconds that a gone gateway's stream is kept
BATCH = 64


class Outbox:
    """An actor for cancels; submits go out in the caller's own task."""

    def __init__(self, connection: Connection, keys: Keys, gateway: str, bound: int) -> None:
        """`bound`: the most entries that may wait in the submit stream."""
        self._connection = connection
        self._keys = keys
        self._gateway = gateway
        self._bound = bound
        self._cancels: Mailbox[Cancel] = Mailbox(1, control_capacity=1 << 16)
        self._alive = keys.lease(f"gateway:{gateway}")
        self._mark = keys.epoch(f"gateway:{gateway}")

    async def submit(self, request: Request) -> str:
        """Adds the request, answers the entry's id. Raises ApiError: 429 if too many wait, 503 without Redis.

        A submit whose answer got lost is sent again; an id that is known is not run twice.
        """
        payload = encode(request)
        try:
            return await retrying(
                "submit",
                lambda: append_bounded(self._connection, self._keys.submit, payload, self._bound),
                give_up_after=SUBMIT_PATIENCE,
            )
        except TooLong:
            raise ApiError(
                429, "Too many requests wait already. Try again later.",
                type="rate_limit_error", code="queue_full", retry_after=1.0,
            ) from None  # fmt: skip
        except UNREACHABLE:
            raise unavailable("bus_unavailable", "The message bus cannot be reached.", 2.0) from None

    def cancel(self, request: str, choice: int | None, reason: str, traceparent: str = "") -> None:
        """Ends a request, or one choice of it, as soon as Redis can be told. Does not wait."""
        self._cancels.put_control(Cancel(request, choice, reason, traceparent))

    async def run(self) -> None:
        """An actor. Ends only by cancellation."""
        while True:
            await self._send([await self._cancels.get()])

    async def flush(self) -> None:
        """Sends what waits. For the end of the process, after `run` has ended."""
        while (cancel := self._cancels.take()) is not None:
            await self._send([cancel])

    async def _send(self, cancels: list[Cancel]) -> None:
        while len(cancels) < BATCH and (more := self._cancels.take()) is not None:
            cancels.append(more)
        commands: list[tuple[object, ...]] = []
        for cancel in cancels:
            if cancel.choice is None:
                # The tombstone first: whoever reads the request's entry after this cancel finds it.
                commands.append(("SET", self._keys.tombstone(cancel.request), cancel.reason, "EX", TOMBSTONE))
            commands.append(
                ("XADD", self._keys.cancel, "MAXLEN", "~", CANCELS_KEPT, "*", "e", encode(cancel))
            )
        await retrying("cancel", lambda: self._connection.pipeline(*commands))

    async def here(self) -> bool:
        """Says that this gateway lives. False when Redis has lost what was said before. Raises RedisError."""
        before, _, _ = await self._connection.pipeline(
            ("SET", self._mark, 1, "EX", OUT_KEPT, "GET"),
            ("SET", self._alive, 1, "PX", int(PRESENCE * 1000)),
            ("EXPIRE", self._keys.out(self._gateway), OUT_KEPT),
        )
        return before is not None

    async def leave(self) -> None:
        """Takes back all that names this gateway. Raises RedisError."""
        await self._connection.call("DEL", self._alive, self._mark, self._keys.out(self._gateway))

    async def presence(self, lost: "asyncio.Event") -> None:
        """An actor: says so without end, and sets `lost` when Redis has lost data."""
        known = False
        while True:
            try:
                kept = await self.here()
            except UNREACHABLE as error:
                log.warning("presence: Redis cannot be reached: %s", error)
            else:
                if known and not kept:
                    log.error("Redis lost data: what has no output yet is submitted again")
                    lost.set()
                known = True
            await asyncio.sleep(PRESENCE / 4)
