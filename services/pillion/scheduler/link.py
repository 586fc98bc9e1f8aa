"""The link to the executor: one bidirectional stream, attached again whenever it breaks."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio

from pillion.actors import Exit, Stop
from pillion.contracts import executor_pb2 as pb
from pillion.contracts import executor_pb2_grpc
from pillion.contracts.access import Access
from pillion.scheduler import wire
from pillion.scheduler.messages import Compile, Compiled, Connected, Disconnected, Event, Plan, StepFailed

log = logging.getLogger(__name__)

WORDS = 64  # in the queue to the stream: the core's constraints without an answer, and plans in flight
ANSWER = 10.0  # seconds from an Open to its answer; an executor that hangs gives none
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
    """Owns the channel. `deliver` takes Connected, then StepDone, StepFailed and Compiled as they come, and
    Disconnected at the end.
    """

    def __init__(self, address: str, replica: str, deliver: Callable[[Event], None], access: Access) -> None:
        self.address = address
        self.replica = replica
        self.why_not = "no executor is attached"  # for readiness; empty while attached
        self.ending = False  # the process is asked to end: an executor that is, too, is to wait for it
        self._deliver = deliver
        self._access = access
        # One queue an attachment, None while there is none: a former one's writer takes nothing more.
        self._words: asyncio.Queue[Plan | Compile | None] | None = None
        self._given_up: asyncio.Future[str] | None = None  # of this attachment; gets the reason

    def send(self, word: Plan | Compile) -> None:
        """What is sent while nothing is attached is lost, as `Disconnected` says."""
        if self._words is not None:
            self._words.put_nowait(word)

    def give_up(self, reason: str) -> None:
        """Ends the attachment: the executor hangs. Should it wake, nobody listens to it any more."""
        if self._given_up is not None and not self._given_up.done():
            self._given_up.set_result(reason)

    async def run(self, epoch: int) -> None:
        """Attaches without end. Raises Stop where the executor knows a later epoch or another secret."""
        async with self._channel() as channel:
            stub = executor_pb2_grpc.ExecutorStub(channel)  # type: ignore[no-untyped-call]
            while True:
                try:
                    await self._attach(stub, epoch)
                except grpc.aio.AioRpcError as error:
                    if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                        raise Stop(Exit.USAGE, f"executor at {self.address}: {error.details()}") from None
                    self._lost(f"executor at {self.address}: {error.code().name.lower()}: {error.details()}")
                except TimeoutError:
                    self._lost(f"executor at {self.address}: no answer within {ANSWER:g} s")
                await asyncio.sleep(_RETRY)

    def _channel(self) -> grpc.aio.Channel:
        credentials = None if self.address.startswith("unix:") else self._access.channel()
        if credentials is None:
            return grpc.aio.insecure_channel(self.address, options=_OPTIONS)
        return grpc.aio.secure_channel(self.address, credentials, options=_OPTIONS)

    def _lost(self, reason: str, orderly: bool = False) -> None:
        if self._words is not None:
            log.warning("executor lost: %s", reason)
            self._words = None
            self._deliver(Disconnected(orderly))
        self.why_not = reason

    async def _attach(self, stub: executor_pb2_grpc.ExecutorStub, epoch: int) -> None:
        """Raises AioRpcError where the stream breaks, TimeoutError where nobody answers the Open."""
        words: asyncio.Queue[Plan | Compile | None] = asyncio.Queue(WORDS)
        call = stub.Attach(self._messages(epoch, words), metadata=self._access.metadata)
        self._given_up = asyncio.get_running_loop().create_future()
        listening = asyncio.create_task(self._listen(call, words))
        either: list[asyncio.Future[Any]] = [listening, self._given_up]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._given_up.done():
                self._lost(self._given_up.result())
            else:
                listening.result()
        finally:
            call.cancel()
            listening.cancel()
            await asyncio.wait([listening])
            if words.empty():
                # A writer that waits for a word ends now, and not when it is collected.
                words.put_nowait(None)

    async def _listen(
        self,
        call: "grpc.aio.StreamStreamCall[pb.ToExecutor, pb.FromExecutor]",
        words: asyncio.Queue[Plan | Compile | None],
    ) -> None:
        async with asyncio.timeout(ANSWER) as opening:
            async for message in call:
                opening.reschedule(None)
                match message.WhichOneof("message"):
                    case "result":
                        self._deliver(wire.step_done(message.result))
                    case "failed":
                        log.error("step %d failed: %s", message.failed.step, message.failed.message)
                        self._deliver(StepFailed(message.failed.step, message.failed.message))
                    case "compiled":
                        self._deliver(Compiled(message.compiled.place))
                    case "facts":
                        facts = wire.facts(message.facts)
                        log.info("executor attached: %s, %s, %s", facts.model, facts.dtype, facts.backend)
                        self.why_not, self._words = "", words
                        self._deliver(Connected(facts))
                    case "refused":
                        self._refused(message.refused)
                        return
        self._lost("the executor ended the stream")

    def _refused(self, refused: pb.Refused) -> None:
        """Instead of facts, or behind them where the executor is asked to end. Raises Stop."""
        if refused.reason == "epoch":
            raise Stop(Exit.LEASE_LOST, refused.message)
        if refused.reason == "schema":
            raise Stop(Exit.USAGE, refused.message)
        self._lost(refused.message, orderly=True)

    async def _messages(
        self, epoch: int, words: asyncio.Queue[Plan | Compile | None]
    ) -> AsyncIterator[pb.ToExecutor]:
        yield wire.open_message(epoch, self.replica)
        while (word := await words.get()) is not None:
            if isinstance(word, Plan):
                yield wire.plan_message(word, self.ending)
            else:
                yield wire.compile_message(word)
