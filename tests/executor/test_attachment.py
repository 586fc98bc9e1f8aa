"""One scheduler's stream over a transport that is slow, as gRPC's may be."""

import asyncio
import gc
from concurrent.futures import Future
from typing import Any

import grpc
import pytest

from pillion.contracts import executor_pb2 as pb
from pillion.executor.attachment import Attachment, StreamEnded
from pillion.executor.compute import Step

LAST = pb.FromExecutor(refused=pb.Refused(reason="draining", message="the executor is stopping"))


class Slow:
    """A context whose writes end when they are let through. Like gRPC's it takes one at a time."""

    def __init__(self) -> None:
        self.plans = [pb.ToExecutor(plan=pb.Plan(step=1))]
        self.begun = asyncio.Event()
        self.through = asyncio.Event()
        self.written: list[str] = []
        self.busy = self.lost = False

    async def read(self) -> object:
        if self.plans:
            return self.plans.pop(0)
        return await asyncio.Future()

    async def write(self, message: pb.FromExecutor) -> None:
        assert not self.busy, "a write beside another"
        self.busy = True
        self.begun.set()
        try:
            await self.through.wait()
        except asyncio.CancelledError:
            raise AssertionError("a write was left half done") from None
        self.busy = False
        if self.lost:
            raise RuntimeError("the call is over")
        self.written.append(str(message.WhichOneof("message")))


class AtOnce:
    """Every step has run when it is submitted."""

    def submit(self, engine: Any, plan: pb.Plan) -> "Future[Step]":
        future: Future[Step] = Future()
        future.set_result(Step(plan, pb.StepResult(step=plan.step), "", 0.0, 0.0, (), None))
        return future


class Nobody:
    def step(self, step: Step) -> None: ...

    def reset(self) -> None: ...


async def ended(context: Slow) -> Attachment:
    """An attachment that was ended while the result of its first step was being written."""
    one: Any = Attachment(1, "0", AtOnce(), None, Nobody())  # type: ignore[arg-type]
    serving = asyncio.create_task(one.serve(context))
    await context.begun.wait()
    one.end(StreamEnded(grpc.StatusCode.UNAVAILABLE, "the executor is stopping"))
    with pytest.raises(StreamEnded, match="is stopping"):
        await asyncio.wait_for(serving, 5)
    assert context.busy
    return one  # type: ignore[no-any-return]


async def test_the_last_word_waits_for_the_write_that_the_end_fell_into() -> None:
    context: Any = Slow()
    one = await ended(context)
    saying = asyncio.create_task(one.say_last(LAST, context))
    await asyncio.sleep(0.05)
    assert context.written == []
    context.through.set()
    while len(context.written) < 2:
        await asyncio.sleep(0.01)
    assert context.written == ["result", "refused"]
    await asyncio.sleep(0.05)
    assert not saying.done()  # the other side ends the stream, which cancels this
    saying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await saying


async def test_a_write_that_fails_behind_the_end_leaves_no_complaint() -> None:
    """As where the executor is asked to end while its scheduler dies."""
    context: Any = Slow()
    said: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: said.append(about["message"]))
    one = await ended(context)
    context.lost = True
    context.through.set()
    await until_done(one)
    del one
    gc.collect()
    assert said == []


async def until_done(one: Attachment) -> None:
    assert one._writing is not None
    await asyncio.wait([one._writing])


async def test_who_reads_nothing_holds_the_end_up_for_a_second_only() -> None:
    context: Any = Slow()
    one = await ended(context)
    await asyncio.wait_for(one.say_last(LAST, context), 5)
    assert context.written == [] and context.busy
    context.through.set()
    await asyncio.sleep(0.05)
