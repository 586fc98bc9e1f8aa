"""One scheduler's stream: plans in, results out, both in the order of `step`; and constraints beside them."""

import asyncio
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from pillion.contracts import executor_pb2
from pillion.executor.compute import Compute, Engine, Step

LAST_WORD_SECONDS = 1.0
ROOM = 4  # plans that are queued or run; the scheduler keeps two in flight, more wait in the transport


Context: TypeAlias = "grpc.aio.ServicerContext[executor_pb2.ToExecutor, executor_pb2.FromExecutor]"


class StreamEnded(Exception):
    """The stream ends with this gRPC status."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


async def read(context: Context) -> object:
    """The next message, or what grpc gives at the end of the stream. Raises StreamEnded."""
    try:
        return await context.read()
    except DecodeError:
        raise StreamEnded(grpc.StatusCode.INVALID_ARGUMENT, "what came is no message") from None


class Observer(Protocol):
    """Is told of every step that ran, and when an attachment's sequences are gone."""

    def step(self, step: Step) -> None: ...

    def reset(self) -> None: ...


class Attachment:
    """Plans and results of one stream. Owns the futures of the steps it has submitted."""

    def __init__(
        self, epoch: int, replica: str, compute: Compute, engine: Engine, observer: Observer
    ) -> None:
        self.epoch = epoch
        self.replica = replica
        self.ending = False  # as the last plan has it: the scheduler is asked to end
        self._compute = compute
        self._engine = engine
        self._observer = observer
        self._due = 1
        self._room = asyncio.Semaphore(ROOM)
        self._steps: asyncio.Queue[Future[Step] | None] = asyncio.Queue()  # bounded by the room
        self._ending: asyncio.Future[StreamEnded] = asyncio.get_running_loop().create_future()
        self._running: set[Future[Step]] = set()
        self._compiling: dict[int, asyncio.Task[None]] = {}  # by place
        self._words = asyncio.Lock()  # gRPC takes no write beside another
        self._writing: asyncio.Future[None] | None = None

    @property
    def idle(self) -> bool:
        """Whether no plan and no constraint is queued or in work."""
        return not self._running and not self._compiling

    def end(self, reason: StreamEnded) -> None:
        """Ends the stream from outside; queued plans are discarded, the running step ends by itself."""
        if not self._ending.done():
            self._ending.set_result(reason)

    def _discard(self) -> None:
        for future in self._running:
            future.cancel()

    async def serve(self, context: Context) -> None:
        """Runs the client's plans until it says that no more come. Raises StreamEnded."""
        failure: StreamEnded | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read(context, tasks))
                writer = tasks.create_task(self._write(context))
                either: list[asyncio.Future[Any]] = [writer, self._ending]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if self._ending.done():
                    raise self._ending.result()
                for task in self._compiling.values():
                    task.cancel()
        except* StreamEnded as group:
            failure = next(error for error in group.exceptions if isinstance(error, StreamEnded))
        finally:
            self._discard()
        if failure is not None:
            raise failure

    async def _read(self, context: Context, tasks: asyncio.TaskGroup) -> None:
        # What is no message is the end of the stream.
        while isinstance(message := await read(context), executor_pb2.ToExecutor):
            kind = message.WhichOneof("message")
            if kind == "compile":
                self._compile(context, tasks, message.compile)
                continue
            if kind != "plan":
                raise StreamEnded(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    "only plans and constraints may follow the first message",
                )
            plan = message.plan
            if plan.step != self._due:
                raise StreamEnded(
                    grpc.StatusCode.FAILED_PRECONDITION,
                    f"plan {plan.step} came where plan {self._due} was due",
                )
            self._due += 1
            self.ending = plan.ending
            await self._room.acquire()
            if self._ending.done():
                return  # the slots may be another scheduler's by now
            future = self._compute.submit(self._engine, plan)
            self._running.add(future)
            self._steps.put_nowait(future)
        self._steps.put_nowait(None)

    async def _write(self, context: Context) -> None:
        while (future := await self._steps.get()) is not None:
            step = await asyncio.wrap_future(future)
            self._running.discard(future)
            self._room.release()
            await self._say(context, step.message())
            self._observer.step(step)

    def _compile(self, context: Context, tasks: asyncio.TaskGroup, wanted: executor_pb2.Compile) -> None:
        places = self._engine.facts.grammars
        if wanted.place >= places or wanted.place in self._compiling:
            raise StreamEnded(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"place {wanted.place} is beyond the {places} places, or not answered yet",
            )
        self._compiling[wanted.place] = tasks.create_task(self._compiled(context, wanted))

    async def _compiled(self, context: Context, wanted: executor_pb2.Compile) -> None:
        await asyncio.wrap_future(self._compute.compile(self._engine, wanted))
        del self._compiling[wanted.place]
        compiled = executor_pb2.Compiled(place=wanted.place)
        await self._say(context, executor_pb2.FromExecutor(compiled=compiled))

    async def _say(self, context: Context, message: executor_pb2.FromExecutor) -> None:
        async with self._words:
            # The end of the stream cancels this task, but not the write: another may follow it.
            self._writing = asyncio.ensure_future(context.write(message))
            self._writing.add_done_callback(_heard)
            await asyncio.shield(self._writing)

    async def say_last(self, message: executor_pb2.FromExecutor, context: Context) -> None:
        """Writes one more message after the end, and waits until the other side ends the stream for it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORD_SECONDS):
                if self._writing is not None:
                    await asyncio.wait([self._writing])
                await context.write(message)
                # Our own end would close the socket, and who is just writing a plan would lose what it
                # has not read yet. Its end cancels this.
                await asyncio.Event().wait()


def _heard(writing: asyncio.Future[None]) -> None:
    """Where nobody waits any more for a write that fails, the end of the stream has told why."""
    if not writing.cancelled():
        writing.exception()
