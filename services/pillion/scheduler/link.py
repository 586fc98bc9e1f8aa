"""The link to the executor: one bidirectional stream, attached again whenever it breaks."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import grpc
import grpc.aio

from pillion.actors import Exit, Stop
from pillion.contracts import executor_pb2 as pb
from pillion.contracts import executor_pb2_grpc
from pillion.scheduler import wire
from pillion.scheduler.messages import Connected, Disconnected, Event, Plan, StepFailed

log = logging.getLogger(__name__)

PLANS = 8  # in the queue to the stream; the core keeps two in flight
_RETRY = 0.1  # seconds between attempts to attach
_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


class Link:
    """Owns the channel. `deliver` takes Connected, StepDone, StepFailed and Disconnected, in this order."""

    def __init__(self, address: str, replica: str, deliver: Callable[[Event], None]) -> None:
        self.address = address
        self.replica = replica
        self.why_not = "no executor is attached"  # for readiness; empty while attached
        self._deliver = deliver
        # One queue an attachment, None while there is none: a former one's writer takes nothing more.
        self._plans: asyncio.Queue[Plan | None] | None = None

    def send(self, plan: Plan) -> None:
        """Plans that are sent while nothing is attached are lost, as `Disconnected` says."""
        if self._plans is not None:
            self._plans.put_nowait(plan)

    async def run(self, epoch: int) -> None:
        """Attaches without end. Raises Stop where the executor knows a later epoch."""
        async with grpc.aio.insecure_channel(self.address, options=_OPTIONS) as channel:
            stub = executor_pb2_grpc.ExecutorStub(channel)  # type: ignore[no-untyped-call]
            while True:
                try:
                    await self._attach(stub, epoch)
                    self._lost("the executor ended the stream")
                except grpc.aio.AioRpcError as error:
                    self._lost(f"executor at {self.address}: {error.code().name.lower()}: {error.details()}")
                await asyncio.sleep(_RETRY)

    def _lost(self, reason: str) -> None:
        if self._plans is not None:
            log.warning("executor lost: %s", reason)
            self.why_not, self._plans = reason, None
            self._deliver(Disconnected())

    async def _attach(self, stub: executor_pb2_grpc.ExecutorStub, epoch: int) -> None:
        plans: asyncio.Queue[Plan | None] = asyncio.Queue(PLANS)
        call = stub.Attach(self._messages(epoch, plans))
        try:
            async for message in call:
                match message.WhichOneof("message"):
                    case "result":
                        self._deliver(wire.step_done(message.result))
                    case "failed":
                        log.error("step %d failed: %s", message.failed.step, message.failed.message)
                        self._deliver(StepFailed(message.failed.step, message.failed.message))
                    case "facts":
                        facts = wire.facts(message.facts)
                        log.info("executor attached: %s, %s, %s", facts.model, facts.dtype, facts.backend)
                        self.why_not, self._plans = "", plans
                        self._deliver(Connected(facts))
                    case "refused":
                        self._refused(message.refused)
                        return
        finally:
            call.cancel()
            if plans.empty():
                plans.put_nowait(
                    None
                )  # a writer that waits for a plan ends now, and not when it is collected

    def _refused(self, refused: pb.Refused) -> None:
        if refused.reason == "epoch":
            raise Stop(Exit.LEASE_LOST, refused.message)
        if refused.reason == "schema":
            raise Stop(Exit.USAGE, refused.message)
        self.why_not = refused.message

    async def _messages(self, epoch: int, plans: asyncio.Queue[Plan | None]) -> AsyncIterator[pb.ToExecutor]:
        yield wire.open_message(epoch, self.replica)
        while (plan := await plans.get()) is not None:
            yield wire.plan_message(plan)
