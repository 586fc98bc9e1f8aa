"""The gRPC side: fences schedulers by epoch, and lets one at a time run steps."""

import asyncio
import logging
import time

import grpc
import grpc.aio

from pillion.contracts import executor_pb2, executor_pb2_grpc
from pillion.contracts.entries import OLDEST, SCHEMA, Facts
from pillion.executor.attachment import Attachment, Context, Observer, StreamEnded, read
from pillion.executor.compute import Compute, Engine

log = logging.getLogger(__name__)

OPEN_SECONDS = 10.0  # from the start of a stream to its Open
IDLE_SECONDS = 1.0  # without a plan of a scheduler that ends, too; then a draining executor's work is done


class Servicer(executor_pb2_grpc.ExecutorServicer):
    """Answers every Open; an accepted one ends the attachment before it, and with it all slots."""

    def __init__(self, compute: Compute, observer: Observer) -> None:
        self._compute = compute
        self._observer = observer
        self._engine: Engine | None = None
        self._epoch = 0
        self._current: Attachment | None = None
        self._draining = False

    def ready(self, engine: Engine) -> None:
        """From now on schedulers may attach."""
        self._engine = engine

    async def drain(self) -> None:
        """Refuses new streams and returns soon: the attached scheduler has all that a successor needs. Only
        one that is asked to end as well, and lets what runs end, is waited for: until it is gone or idle.
        """
        self._draining = True
        quiet = time.monotonic()
        while self._current is not None and time.monotonic() - quiet < IDLE_SECONDS:
            await asyncio.sleep(IDLE_SECONDS / 20)
            if self._current is not None and self._current.ending and not self._current.idle:
                quiet = time.monotonic()

    async def hand_on(self) -> None:
        """The grace period is over: the scheduler goes on with whoever comes next."""
        self.end()

    def end(self) -> None:
        """Ends the current attachment."""
        if self._current is not None:
            self._current.end(StreamEnded(grpc.StatusCode.UNAVAILABLE, "the executor is stopping"))

    async def Attach(self, request_iterator: object, context: Context) -> None:
        attachment: Attachment | None = None
        reason = "it sends no more plans"
        try:
            attachment = await self._open(context)
            if attachment is not None:
                await self._serve(attachment, context)
        except StreamEnded as end:
            reason = str(end)
            if self._draining and attachment is not None:
                await attachment.say_last(_refused("draining", reason), context)
            await context.abort(end.code, reason)
        except asyncio.CancelledError:
            reason = "its stream was lost"
            raise
        finally:
            if attachment is not None:
                log.info("scheduler of epoch %d detached: %s", attachment.epoch, reason)

    async def _open(self, context: Context) -> Attachment | None:
        """Reads the Open. None where it was refused. Raises StreamEnded where none came."""
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                first = await read(context)
        except TimeoutError:
            raise StreamEnded(
                grpc.StatusCode.DEADLINE_EXCEEDED, f"no Open came within {OPEN_SECONDS:g} s"
            ) from None
        if not isinstance(first, executor_pb2.ToExecutor) or first.WhichOneof("message") != "open":
            raise StreamEnded(grpc.StatusCode.INVALID_ARGUMENT, "the first message must be an Open")
        opening = first.open
        answer = self._refusal(opening)
        if answer is not None:
            refused = answer.refused
            # While the model loads or ends, a scheduler asks several times a second.
            level = logging.DEBUG if refused.reason in ("loading", "draining") else logging.INFO
            log.log(level, "refused a scheduler of epoch %d: %s", opening.epoch, refused.message)
            await context.write(answer)
            return None
        assert self._engine is not None  # else it is refused as loading
        self._epoch = opening.epoch
        return Attachment(opening.epoch, opening.replica, self._compute, self._engine, self._observer)

    async def _serve(self, attachment: Attachment, context: Context) -> None:
        assert self._engine is not None
        former, self._current = self._current, attachment
        try:
            if former is not None:
                former.end(
                    StreamEnded(
                        grpc.StatusCode.ABORTED, f"a scheduler with epoch {attachment.epoch} took over"
                    )
                )
            await self._compute.call(self._engine.reset)
            self._observer.reset()
            await context.write(executor_pb2.FromExecutor(facts=to_wire(self._engine.facts)))
            log.info("scheduler of replica %s attached, epoch %d", attachment.replica, attachment.epoch)
            await attachment.serve(context)
        finally:
            if self._current is attachment:
                self._current = None

    def _refusal(self, opening: executor_pb2.Open) -> executor_pb2.FromExecutor | None:
        if not OLDEST <= opening.schema <= SCHEMA:
            return _refused(
                "schema", f"schema {opening.schema} is not this executor's {SCHEMA}; run one release"
            )
        if opening.epoch < self._epoch:
            return _refused("epoch", f"epoch {opening.epoch} is over; {self._epoch} was seen since")
        if self._draining:
            return _refused("draining", "the executor is stopping")
        if self._engine is None:
            return _refused("loading", "the model is being loaded")
        return None


def _refused(reason: str, message: str) -> executor_pb2.FromExecutor:
    return executor_pb2.FromExecutor(refused=executor_pb2.Refused(reason=reason, message=message))


def to_wire(facts: Facts) -> executor_pb2.Facts:
    return executor_pb2.Facts(
        schema=SCHEMA, **{name: getattr(facts, name) for name in Facts.__struct_fields__}
    )
