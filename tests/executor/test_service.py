"""The executor behind a real gRPC stream, with a real engine on a tiny random model."""

import asyncio
import os
import signal
import stat
import struct
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import torch
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pillion.config import Config, load
from pillion.contracts import executor_pb2 as pb
from pillion.contracts import executor_pb2_grpc
from pillion.contracts.access import Access
from pillion.contracts.entries import SCHEMA
from pillion.executor import attachment, listen, loading, servicer
from pillion.executor.compute import Compute
from pillion.executor.engine import Engine
from pillion.executor.servicer import Servicer
from pillion.executor.spans import Spans
from pillion.executor.watch import Watch
from pillion.grammar.wire import CURRENT
from pillion.telemetry import Metrics, names

PROMPT = list(range(10, 30))
DEADLINE = 20.0
SLOW = pb.Constraint(kind="lark", text="start: A\nA: ~/(.*)a(.*)/ & ~/(.*)b.{50}(.*)/ & /.{0,500}/")
OPEN = Access(load(environ={}).config.executor)


def settings(model: Path, folder: Path, **more: Any) -> Config:
    flags = {
        "model": str(model), "dtype": "float32", "num_kv_blocks": 12, "max_num_seqs": 4, "threads": 1,
        "max_num_batched_tokens": 64, "state_dir": str(folder / "s"),
    }  # fmt: skip
    return load(flags | more, environ={}).config


@pytest.fixture(scope="module")
def engine(tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Engine:
    lines: list[str] = []
    threads = torch.get_num_threads()
    loaded = loading.load(settings(tiny_model("smollm2"), tmp_path_factory.mktemp("x")), lines.append)
    torch.set_num_threads(threads)
    assert len(lines) == 3
    assert loaded.engine.grammars.pid is not None, "the first constrained sequence has nothing to wait for"
    return loaded.engine


class Gate:
    """The engine, with a door before each step. Counts what was asked of it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.door = threading.Event()
        self.door.set()
        self.compiles = threading.Event()
        self.compiles.set()
        self.began: list[int] = []
        self.threads: set[str] = set()
        self.resets = 0

    @property
    def facts(self) -> Any:
        return self.engine.facts

    @property
    def parts(self) -> Any:
        return self.engine.parts

    def run(self, plan: pb.Plan) -> pb.StepResult:
        self.began.append(plan.step)
        self.threads.add(threading.current_thread().name)
        assert self.door.wait(DEADLINE)
        return self.engine.run(plan)

    def compile(self, place: int, message: pb.Constraint) -> None:
        assert self.compiles.wait(DEADLINE)
        self.engine.compile(place, message)

    def reset(self) -> None:
        self.resets += 1
        self.engine.reset()


class House:
    """A served engine."""

    def __init__(self, engine: Engine) -> None:
        self.gate = Gate(engine)
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        layer = (metric for metric in names.METRICS if metric.layer == "executor")
        self.metrics = Metrics("executor", "0", layer)
        self.compute = Compute()
        self.servicer = Servicer(self.compute, Watch(self.metrics, Spans(provider.get_tracer("test"))))
        self.channels: list[grpc.aio.Channel] = []
        self.target = ""

    async def attach(self, epoch: int = 1, **more: Any) -> "Stream":
        channel = grpc.aio.insecure_channel(self.target)
        self.channels.append(channel)
        stream = Stream(executor_pb2_grpc.ExecutorStub(channel).Attach())
        await stream.call.write(pb.ToExecutor(open=pb.Open(**{"schema": SCHEMA, "epoch": epoch} | more)))
        return stream

    def samples(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(name)

    def total(self, name: str) -> dict[str, float]:
        """By intensity, where there is any."""
        families = self.metrics.registry.collect()
        samples = (sample for family in families for sample in family.samples if sample.name == name)
        return {sample.labels["intensity"]: sample.value for sample in samples if sample.value}


class Stream:
    """A scheduler's end."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def send(self, plan: pb.Plan) -> None:
        await self.call.write(pb.ToExecutor(plan=plan))

    async def compile(self, place: int, constraint: pb.Constraint) -> None:
        await self.call.write(pb.ToExecutor(compile=pb.Compile(place=place, constraint=constraint)))

    async def get(self) -> pb.FromExecutor:
        async with asyncio.timeout(DEADLINE):
            message = await self.call.read()
        assert isinstance(message, pb.FromExecutor), "the stream has ended"
        return message

    async def facts(self) -> pb.Facts:
        message = await self.get()
        assert message.WhichOneof("message") == "facts"
        return message.facts

    async def result(self) -> pb.StepResult:
        message = await self.get()
        assert message.WhichOneof("message") == "result", message
        return message.result

    async def end(self) -> tuple[grpc.StatusCode, str]:
        async with asyncio.timeout(DEADLINE):
            code = await self.call.code()
            return code, await self.call.details()


@pytest.fixture
async def house(engine: Engine, tmp_path: Path) -> AsyncIterator[House]:
    house = House(engine)
    server = grpc.aio.server()
    executor_pb2_grpc.add_ExecutorServicer_to_server(house.servicer, server)
    house.target = listen.bind(server, f"unix:{tmp_path}/new/e.sock", OPEN)
    await server.start()
    house.servicer.ready(house.gate)
    yield house
    house.gate.door.set()
    house.gate.compiles.set()
    for channel in house.channels:
        await channel.close()
    await server.stop(0)
    assert await house.compute.close(DEADLINE)


def take(slot: int, incarnation: int, blocks: list[int], tokens: list[int] = PROMPT, **more: Any) -> pb.Take:
    given = {
        "prompt_length": len(tokens),
        "max_tokens": 50,
        "sampling": pb.Sampling(seed=1, ignore_eos=True),
    } | more
    return pb.Take(
        slot=slot,
        incarnation=incarnation,
        blocks=blocks,
        tokens=struct.pack(f"<{len(tokens)}i", *tokens),
        **given,
    )


def prefill(step: int, slot: int, incarnation: int, blocks: list[int], **more: Any) -> pb.Plan:
    """Takes the slot and computes the whole prompt."""
    taken = take(slot, incarnation, blocks, **more)
    count = len(taken.tokens) // 4
    return pb.Plan(step=step, take=[taken], slot=[slot], start=[0], count=[count], sample=[1])


def decode(step: int, slot: int, start: int, tokens: int = 1) -> pb.Plan:
    return pb.Plan(step=step, slot=[slot], start=[start], count=[1], sample=[tokens])


def kill(engine: Engine) -> int:
    """The grammar process; answers which it was."""
    pid = engine.grammars.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


def in_place(engine: Engine) -> int:
    """The place whose constraint is being compiled."""
    return int(CURRENT.unpack_from(engine.grammars._shared)[1])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():
            await asyncio.sleep(0.005)


async def test_an_open_is_answered_with_the_facts(house: House) -> None:
    facts = await (await house.attach(replica="0")).facts()
    for field in ("model", "fingerprint", "max_model_len", "vocab_size", "block_size", "num_blocks", "dtype"):
        assert getattr(facts, field) == getattr(house.gate.facts, field) != type(getattr(facts, field))()
    assert tuple(facts.end_tokens) == house.gate.facts.end_tokens
    assert (facts.schema, facts.num_blocks, facts.max_num_seqs) == (SCHEMA, 12, 4)


async def test_results_come_in_the_order_of_the_plans(house: House) -> None:
    """All plans are sent at once; a decode's input is the token that the step before it sampled."""
    stream = await house.attach()
    await stream.facts()
    await stream.send(prefill(1, 2, 77, [1, 2]))
    for step in range(2, 10):
        await stream.send(decode(step, 2, len(PROMPT) + step - 2))
    results = [await stream.result() for _ in range(9)]
    assert [result.step for result in results] == list(range(1, 10))
    assert {(*result.slot, *result.incarnation) for result in results} == {(2, 77)}
    tokens = [result.tokens[0] for result in results]
    assert all(result.seconds > 0 for result in results)
    await stream.call.done_writing()
    assert await stream.end() == (grpc.StatusCode.OK, "")

    again = await house.attach(epoch=2)
    await again.facts()
    await again.send(prefill(1, 0, 1, [3, 4]))
    first = (await again.result()).tokens[0]
    for step in range(2, 10):  # one by one, in another slot and other blocks
        await again.send(decode(step, 0, len(PROMPT) + step - 2))
        assert (await again.result()).tokens[0] == tokens[step - 1]
    assert first == tokens[0]
    assert len(set(tokens)) > 1
    assert len(house.gate.threads) == 1


async def test_steps_go_on_while_a_slow_constraint_is_compiled(house: House, engine: Engine) -> None:
    """Free ones and constrained ones; what the slow one had is compiled before its sequence comes."""
    stream = await house.attach()
    assert (await stream.facts()).grammars > 5
    quick = pb.Sampling(seed=2, constraint=pb.Constraint(kind="regex", text="[ab]{200}"))
    await stream.compile(4, quick.constraint)
    assert (await stream.get()).compiled.place == 4
    await stream.send(prefill(1, 0, 1, [1, 2, 3]))
    await stream.send(prefill(2, 1, 2, [4, 5, 6], sampling=quick))
    lengths = [len(PROMPT) + 1] * 2
    for _ in range(2):
        assert (await stream.result()).token_count == [1]
    await stream.compile(5, SLOW)
    await until(lambda: in_place(engine) == 5)
    for step in range(3, 23):
        await stream.send(
            pb.Plan(step=step, slot=[0, 1], start=[n - 1 for n in lengths], count=[1, 1], sample=[1, 1])
        )
        assert (await stream.result()).token_count == [1, 1]
        lengths = [n + 1 for n in lengths]
    assert in_place(engine) == 5, "it was compiled in line"
    first = kill(engine)  # this time it may have been somebody else's fault
    await until(lambda: engine.grammars.pid not in (None, first) and in_place(engine) == 5)
    kill(engine)
    assert (await stream.get()).compiled.place == 5
    await stream.send(prefill(23, 2, 3, [7, 8, 9], sampling=pb.Sampling(seed=3, constraint=SLOW)))
    result = await stream.result()
    assert list(result.finish) == [pb.ERROR] and "more time or memory" in result.errors[2]


async def test_a_constraint_that_is_none_is_told_to_its_sequence(house: House) -> None:
    stream = await house.attach()
    await stream.facts()
    wrong = pb.Constraint(kind="xml", text="<a>")
    await stream.compile(0, wrong)
    assert (await stream.get()).compiled.place == 0
    await stream.send(prefill(1, 0, 1, [1, 2], sampling=pb.Sampling(seed=1, constraint=wrong)))
    assert list((await stream.result()).finish) == [pb.ERROR]


@pytest.mark.parametrize("places", [[64], [3, 3]])
async def test_a_place_that_is_not_there_or_still_in_work_ends_the_stream(
    house: House, places: list[int]
) -> None:
    stream = await house.attach()
    await stream.facts()
    house.gate.compiles.clear()
    for place in places:
        await stream.compile(place, pb.Constraint(kind="regex", text="a"))
    assert await stream.end() == (
        grpc.StatusCode.FAILED_PRECONDITION,
        f"place {places[0]} is beyond the 64 places, or not answered yet",
    )


async def test_a_resumed_sequence_goes_on_with_the_same_tokens(house: House) -> None:
    """Penalties and the position of the draw are rebuilt from the tokens that the slot is taken with."""
    sampling = pb.Sampling(
        seed=5,
        temperature=1.0,
        top_p=1.0,
        repetition_penalty=1.4,
        frequency_penalty=0.9,
        ignore_eos=True,
        logprobs=2,
    )
    stream = await house.attach()
    await stream.facts()
    await stream.send(prefill(1, 0, 1, [1, 2, 3, 4], sampling=sampling))
    tokens = list((await stream.result()).tokens)
    for step in range(2, 12):
        await stream.send(decode(step, 0, len(PROMPT) + step - 2))
        tokens += (await stream.result()).tokens
    known = PROMPT + tokens[:5]
    await stream.send(
        prefill(12, 1, 2, [5, 6, 7, 8], tokens=known, prompt_length=len(PROMPT), sampling=sampling)
    )
    resumed = list((await stream.result()).tokens)
    for step in range(13, 18):
        await stream.send(decode(step, 1, len(known) + step - 13))
        result = await stream.result()
        resumed += result.tokens
        assert list(result.logprob_count) == [1]
        assert len(result.logprobs[0].top_tokens) == 2
    assert resumed == tokens[5:]


@pytest.mark.parametrize("step", [0, 2])
async def test_a_first_plan_other_than_one_ends_the_stream(house: House, step: int) -> None:
    stream = await house.attach()
    await stream.facts()
    await stream.send(prefill(step, 0, 1, [1, 2]))
    assert await stream.end() == (
        grpc.StatusCode.FAILED_PRECONDITION, f"plan {step} came where plan 1 was due",
    )  # fmt: skip
    assert house.gate.began == []


@pytest.mark.parametrize("step", [1, 3])
async def test_a_repeated_or_skipped_plan_ends_the_stream(house: House, step: int) -> None:
    stream = await house.attach()
    await stream.facts()
    await stream.send(prefill(1, 0, 1, [1, 2]))
    await stream.result()
    await stream.send(decode(step, 0, len(PROMPT)))
    assert await stream.end() == (
        grpc.StatusCode.FAILED_PRECONDITION, f"plan {step} came where plan 2 was due",
    )  # fmt: skip
    assert house.gate.began == [1]


async def test_only_an_open_opens_and_only_plans_follow(house: House) -> None:
    channel = grpc.aio.insecure_channel(house.target)
    house.channels.append(channel)
    stream = Stream(executor_pb2_grpc.ExecutorStub(channel).Attach())
    await stream.send(prefill(1, 0, 1, [1]))
    assert await stream.end() == (grpc.StatusCode.INVALID_ARGUMENT, "the first message must be an Open")
    stream = await house.attach()
    await stream.facts()
    await stream.call.write(pb.ToExecutor(open=pb.Open(schema=SCHEMA, epoch=9)))
    assert (await stream.end())[0] is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_lower_epoch_is_refused(house: House) -> None:
    await (await house.attach(epoch=7)).facts()
    stream = await house.attach(epoch=6)
    refused = (await stream.get()).refused
    assert refused.reason == "epoch"
    assert "7" in refused.message
    assert await stream.end() == (grpc.StatusCode.OK, "")
    assert house.gate.resets == 1  # the one attached is left alone
    assert not house.servicer._current._ending.done()


async def test_another_schema_is_refused(house: House) -> None:
    assert (await (await house.attach(schema=SCHEMA + 1)).get()).refused.reason == "schema"


async def test_a_model_that_loads_is_a_refusal(house: House) -> None:
    house.servicer.ready(None)  # type: ignore[arg-type]
    assert (await (await house.attach()).get()).refused.reason == "loading"
    house.servicer.ready(house.gate)
    await (await house.attach()).facts()


async def test_a_higher_epoch_ends_the_older_attachment_and_drops_its_slots(house: House) -> None:
    older = await house.attach(epoch=1)
    await older.facts()
    await older.send(prefill(1, 0, 1, [1, 2]))
    await older.result()
    house.gate.door.clear()
    for step in (2, 3, 4):
        await older.send(decode(step, 0, len(PROMPT) + step - 2))
    await until(lambda: house.gate.began == [1, 2])
    newer = await house.attach(epoch=2)
    assert await older.end() == (grpc.StatusCode.ABORTED, "a scheduler with epoch 2 took over")
    house.gate.door.set()
    await newer.facts()
    assert house.gate.began == [1, 2]  # the running step ended, the queued ones never began
    await newer.send(decode(1, 0, len(PROMPT)))
    failed = (await newer.get()).failed
    assert "slot 0 holds no sequence" in failed.message
    await newer.send(prefill(2, 0, 1, [1, 2]))
    assert (await newer.result()).step == 2


async def test_the_same_epoch_may_attach_again(house: House) -> None:
    first = await house.attach(epoch=3)
    await first.facts()
    await (await house.attach(epoch=3)).facts()
    assert (await first.end())[0] is grpc.StatusCode.ABORTED
    assert house.gate.resets == 2


async def test_a_lost_scheduler_leaves_the_model_and_nothing_queued(house: House) -> None:
    stream = await house.attach()
    await stream.facts()
    house.gate.door.clear()
    await stream.send(prefill(1, 0, 1, [1, 2]))
    await stream.send(decode(2, 0, len(PROMPT)))
    await until(lambda: len(house.servicer._current._running) == 2)
    await until(lambda: house.gate.began == [1])  # it runs; what is only queued is discarded
    stream.call.cancel()
    await until(lambda: house.servicer._current is None)
    house.gate.door.set()
    again = await house.attach()
    await again.facts()
    await again.send(prefill(1, 0, 1, [1, 2]))
    assert (await again.result()).step == 1
    assert house.gate.began == [1, 1]


async def test_few_plans_are_queued_and_none_is_lost(house: House) -> None:
    stream = await house.attach()
    await stream.facts()
    house.gate.door.clear()
    await stream.send(prefill(1, 0, 1, [1, 2]))
    for step in range(2, 12):
        await stream.send(decode(step, 0, len(PROMPT) + step - 2))
    await until(lambda: len(house.servicer._current._running) == attachment.ROOM)
    await asyncio.sleep(0.1)
    assert len(house.servicer._current._running) == attachment.ROOM < 11
    house.gate.door.set()
    assert [(await stream.result()).step for _ in range(11)] == list(range(1, 12))


async def test_a_step_that_raises_fails_alone(house: House) -> None:
    stream = await house.attach()
    await stream.facts()
    await stream.send(prefill(1, 0, 1, [1, 2]))
    tokens = [(await stream.result()).tokens[0]]
    await stream.send(prefill(2, 1, 2, [12]))  # the pool ends at 11
    failed = (await stream.get()).failed
    assert failed.step == 2
    assert failed.message == "BadPlan: block 12 is not one of 1 to 11"
    await stream.send(decode(3, 0, len(PROMPT)))
    tokens.append((await stream.result()).tokens[0])
    await until(lambda: house.samples("pillion_step_seconds_count") == 2)
    assert house.samples("pillion_steps_failed_total") == 1

    await stream.send(prefill(4, 2, 3, [3, 4]))
    await stream.send(decode(5, 2, len(PROMPT)))
    assert [(await stream.result()).tokens[0] for _ in range(2)] == tokens


async def test_gaps_are_counted_between_steps_that_leave_work(house: House) -> None:
    stream = await house.attach()
    await stream.facts()
    begin = time.monotonic()
    for plan in (prefill(1, 0, 1, [1, 2]), decode(2, 0, len(PROMPT)), decode(3, 0, len(PROMPT) + 1)):
        await stream.send(plan)
        await stream.result()
    await stream.send(prefill(4, 1, 2, [3, 4], max_tokens=1))
    result = await stream.result()
    assert list(result.finish) == [pb.LENGTH]
    busy = time.monotonic() - begin
    await asyncio.sleep(max(0.2, busy))  # idle: slot 0 is not in the last plan
    await stream.send(prefill(5, 2, 3, [5, 6], max_tokens=1))
    assert (await stream.result()).gap_seconds == 0
    await until(lambda: house.samples("pillion_step_seconds_count") == 5)
    assert house.samples("pillion_step_gap_seconds_count") == 3
    assert house.samples("pillion_step_gap_seconds_sum") < busy
    parts = [
        house.metrics.registry.get_sample_value("pillion_step_part_seconds_total", {"part": part})
        for part in ("prepare", "forward", "logits", "sample")
    ]
    assert all(parts)
    assert sum(parts) == pytest.approx(house.samples("pillion_step_seconds_sum"))


async def test_a_step_s_work_is_counted_exactly(house: House) -> None:
    """By hand: 3 layers, 96 wide, 3 heads and 1 KV head of 32, MLP 128, vocabulary 320, float32."""
    layers = 3 * 96 * (3 * 32 + 2 * 32 + 3 * 32 + 3 * 128)
    head = 96 * 320
    flops: dict[str, float] = {}
    read: dict[str, float] = {}

    async def counted(steps: int) -> None:
        await until(lambda: house.samples("pillion_step_seconds_count") == steps)
        assert house.total("pillion_flops_total") == flops
        assert house.total("pillion_read_bytes_total") == read

    def add(intensity: str, tokens: int, pairs: int, keys: int) -> None:
        for told, work in (
            (flops, 2 * (tokens * layers + head) + 3 * pairs * 3 * 32 * 4),
            (read, 4 * (layers + head + tokens * 96 + 3 * keys * 2 * 32)),
        ):
            told[intensity] = told.get(intensity, 0) + work

    stream = await house.attach()
    await stream.facts()
    await stream.send(prefill(1, 0, 1, [1, 2]))
    await stream.result()
    add("16", tokens=20, pairs=20 * 21 // 2, keys=20)
    await counted(1)
    await stream.send(decode(2, 0, 20))
    await stream.result()
    add("1", tokens=1, pairs=21, keys=21)
    await counted(2)
    await stream.send(decode(3, 0, 21, tokens=3))  # each of its steps reads all weights
    assert (await stream.result()).steps == 3
    for keys in (22, 23, 24):
        add("1", tokens=1, pairs=keys, keys=keys)
    await counted(5)
    await stream.send(pb.Plan(step=4, release=[0]))  # no step at all
    assert (await stream.result()).steps == 0
    await stream.send(prefill(5, 1, 2, [3, 4]))
    await stream.result()
    add("16", tokens=20, pairs=20 * 21 // 2, keys=20)
    await counted(6)


async def test_a_sequence_has_two_spans_whatever_its_length(house: House) -> None:
    trace_id, parent = "a" * 32, "b" * 16
    stream = await house.attach()
    await stream.facts()
    await stream.send(
        pb.Plan(
            step=1, slot=[0], start=[0], count=[12], sample=[0],
            take=[take(0, 1, [1, 2], traceparent=f"00-{trace_id}-{parent}-01", max_tokens=6)],
        )
    )  # fmt: skip
    assert list((await stream.result()).slot) == []
    await stream.send(pb.Plan(step=2, slot=[0], start=[12], count=[8], sample=[1]))
    await stream.result()
    for step in (3, 4):
        await stream.send(decode(step, 0, len(PROMPT) + step - 3))
        await stream.result()
    await stream.send(decode(5, 0, len(PROMPT) + 2, tokens=7))  # it may get three
    result = await stream.result()
    assert list(result.finish) == [pb.LENGTH]
    await stream.send(prefill(6, 1, 2, [3, 4]))  # not traced
    await stream.result()
    await until(lambda: len(house.exporter.get_finished_spans()) == 2)
    first, second = house.exporter.get_finished_spans()
    assert [first.name, second.name] == ["execute prefill", "execute decode"]
    for span in (first, second):
        assert f"{span.context.trace_id:032x}" == trace_id
        assert f"{span.parent.span_id:016x}" == parent
    assert first.attributes["pillion.computed_tokens"] == len(PROMPT)
    assert first.attributes["pillion.steps"] == 2
    assert second.attributes["pillion.steps"] == second.attributes["pillion.computed_tokens"] == 5
    assert second.attributes["pillion.end"] == "length"
    assert first.start_time < first.end_time == second.start_time < second.end_time


async def test_a_lost_scheduler_ends_the_open_spans(house: House) -> None:
    stream = await house.attach()
    await stream.facts()
    await stream.send(prefill(1, 0, 1, [1, 2], traceparent=f"00-{'a' * 32}-{'b' * 16}-01"))
    await stream.result()
    await (await house.attach()).facts()
    await until(lambda: len(house.exporter.get_finished_spans()) == 2)
    spans = house.exporter.get_finished_spans()
    assert [span.name for span in spans] == ["execute prefill", "execute decode"]
    assert spans[1].attributes["pillion.end"] == "detached"


async def test_draining_waits_for_nothing_that_a_successor_can_do(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicer, "IDLE_SECONDS", 0.1)
    stream = await house.attach()
    await stream.facts()
    house.gate.door.clear()
    await stream.send(prefill(1, 0, 1, [1, 2]))
    await until(lambda: house.gate.began == [1])
    async with asyncio.timeout(DEADLINE):
        await house.servicer.drain()
    assert (await (await house.attach(epoch=9)).get()).refused.reason == "draining"
    house.servicer.end()
    assert (await stream.get()).refused.reason == "draining"  # no fault of what is in flight
    assert await stream.end() == (grpc.StatusCode.UNAVAILABLE, "the executor is stopping")


async def test_draining_waits_for_a_scheduler_that_lets_its_sequences_end(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicer, "IDLE_SECONDS", 0.1)
    stream = await house.attach()
    await stream.facts()
    house.gate.door.clear()
    plan = prefill(1, 0, 1, [1, 2])
    plan.ending = True
    await stream.send(plan)
    await until(lambda: house.gate.began == [1])
    drained = asyncio.create_task(house.servicer.drain())
    await asyncio.sleep(0.3)
    assert not drained.done()
    house.gate.door.set()
    await stream.result()
    async with asyncio.timeout(DEADLINE):
        await drained


async def test_draining_ends_at_once_without_a_scheduler(house: House) -> None:
    async with asyncio.timeout(DEADLINE):
        await house.servicer.drain()


# --- the address ------------------------------------------------------------------------------------


async def test_the_socket_is_private_and_a_stale_one_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "e.sock"
    first = grpc.aio.server()
    listen.bind(first, f"unix:{path}", OPEN)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    await first.start()
    with pytest.raises(listen.ListenError, match="another executor listens"):
        listen.bind(grpc.aio.server(), f"unix:{path}", OPEN)
    await first.stop(0)
    path.unlink(missing_ok=True)
    import socket

    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.is_socket()
    second = grpc.aio.server()
    listen.bind(second, f"unix:{path}", OPEN)
    await second.start()
    await second.stop(0)


async def test_addresses_that_cannot_be_say_why(tmp_path: Path) -> None:
    with pytest.raises(listen.ListenError, match="longer than the 107 bytes"):
        listen.bind(grpc.aio.server(), f"unix:{tmp_path}/{'x' * 120}/e.sock", OPEN)
    (tmp_path / "file").write_text("")
    with pytest.raises(listen.ListenError, match="is no socket"):
        listen.bind(grpc.aio.server(), f"unix:{tmp_path}/file", OPEN)
    guarded = Access(load({"executor_secret": "s"}, environ={}).config.executor)
    with pytest.raises(listen.ListenError, match=r"cannot listen on 192\.0\.2\.1:1.*--executor"):
        listen.bind(grpc.aio.server(), "192.0.2.1:1", guarded)


def test_the_default_address_is_the_replicas_own(tmp_path: Path) -> None:
    config = load({"state_dir": str(tmp_path), "replica": "r1", "stack": "s1"}, environ={}).config
    assert listen.address(config) == f"unix:{tmp_path}/s1/executor-r1.sock"
    told = replace_executor(config, "127.0.0.1:7000")
    assert listen.address(told) == "127.0.0.1:7000"


def replace_executor(config: Config, address: str) -> Config:
    import msgspec

    return msgspec.structs.replace(
        config, executor=msgspec.structs.replace(config.executor, executor=address)
    )


# --- the process ------------------------------------------------------------------------------------

PROGRAM = """
import asyncio, json, logging, sys
from pillion.config import load
logging.basicConfig(level="INFO", format="%(message)s")
from pillion.executor.service import run
sys.exit(asyncio.run(run(load(json.loads(sys.argv[1]), environ={}).config)))
"""


class Process:
    """The executor as it is run, with the lines it has said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def line(self, part: str) -> str:
        async with asyncio.timeout(60):
            while not (self.lines and part in self.lines[-1]):
                raw = await self.process.stderr.readline()
                assert raw, f"ended without saying {part!r}: {self.lines}"
                self.lines.append(raw.decode().rstrip())
        return self.lines[-1]

    async def exit(self) -> int:
        async with asyncio.timeout(30):
            code = await self.process.wait()
        self.lines += (await self.process.stderr.read()).decode().splitlines()
        return code


@pytest.fixture
async def start(tmp_path: Path, tiny_model: Callable[..., Path]) -> AsyncIterator[Callable[..., Any]]:
    import json

    started: list[Process] = []

    async def begin(**more: Any) -> Process:
        flags = {
            "model": str(tiny_model("smollm2")), "dtype": "float32", "num_kv_blocks": 12, "max_num_seqs": 4,
            "threads": 1, "max_num_batched_tokens": 64, "executor": f"unix:{tmp_path}/e.sock",
        } | more  # fmt: skip
        process = Process(
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                PROGRAM,
                json.dumps(flags),
                stderr=asyncio.subprocess.PIPE,
                env=dict(os.environ),
            )
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.process.returncode is None:
            process.process.kill()
            await process.process.wait()


async def test_only_a_socket_file_needs_another_mask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mask is the whole process's: a folder that another thread makes meanwhile could not be entered."""
    set_: list[int] = []
    monkeypatch.setattr(os, "umask", lambda mask: set_.append(mask) or 0o022)
    access = Access(load(environ={}).config.executor)
    listen.bind(grpc.aio.server(), "127.0.0.1:0", access)
    assert set_ == []
    listen.bind(grpc.aio.server(), f"unix:{tmp_path}/e.sock", access)
    assert set_ == [0o177, 0o022]


async def test_the_process_loads_serves_and_drains(start: Callable[..., Any], tmp_path: Path) -> None:
    process = await start(metrics_port=0)
    await process.line("listens on")
    async with grpc.aio.insecure_channel(f"unix:{tmp_path}/e.sock") as channel:
        reasons = []
        async with asyncio.timeout(60):
            while True:  # it answers while it loads
                stream = Stream(executor_pb2_grpc.ExecutorStub(channel).Attach())
                await stream.call.write(pb.ToExecutor(open=pb.Open(schema=SCHEMA, epoch=1)))
                message = await stream.get()
                if message.WhichOneof("message") == "facts":
                    break
                reasons.append(message.refused.reason)
                await asyncio.sleep(0.01)
        assert set(reasons) <= {"loading"}
        await stream.send(prefill(1, 0, 1, [1, 2]))
        assert (await stream.result()).step == 1
        process.process.send_signal(signal.SIGTERM)
        assert (await stream.get()).refused.reason == "draining"
        assert (await stream.end())[0] is grpc.StatusCode.UNAVAILABLE
    assert await process.exit() == 0
    said = "\n".join(process.lines)
    assert said.index("listens on") < said.index("looking for the model")  # which may make folders
    for part in (
        "model ",
        "float32, 1 thread\n",
        "backend torch: ",
        "11 KV blocks",
        "room for 1 request of the full ",
        "MiB resident",
    ):
        assert part in said
    assert "metrics on http://127.0.0.1:" in said
    assert said.index("listens on") < said.index("ready; ")


async def test_a_second_signal_forces(start: Callable[..., Any], tmp_path: Path) -> None:
    process = await start()
    await process.line("ready")
    async with grpc.aio.insecure_channel(f"unix:{tmp_path}/e.sock") as channel:
        stream = Stream(executor_pb2_grpc.ExecutorStub(channel).Attach())
        await stream.call.write(pb.ToExecutor(open=pb.Open(schema=SCHEMA, epoch=1)))
        await stream.facts()
        process.process.send_signal(signal.SIGTERM)
        await process.line("draining")
        process.process.send_signal(signal.SIGTERM)
        assert await process.exit() == 130


async def test_a_model_that_is_not_there_ends_the_process(start: Callable[..., Any], tmp_path: Path) -> None:
    process = await start(model=str(tmp_path / "none"))
    assert await process.exit() == 2
    assert any("no model at" in line for line in process.lines)
    assert not any("Traceback" in line for line in process.lines)


async def test_bytes_that_are_no_message_end_the_stream_alone(house: House, caplog: Any) -> None:
    channel = grpc.aio.insecure_channel(house.target)
    house.channels.append(channel)
    raw = channel.stream_stream("/pillion.contracts.Executor/Attach", None, None)
    opening = pb.ToExecutor(open=pb.Open(schema=SCHEMA, epoch=1)).SerializeToString()
    for sent in ((b"\xff\xff",), (opening, b"\xff\xff")):
        call = raw()
        for data in sent:
            await call.write(data)
            if data == opening:
                await call.read()  # the facts
        assert await Stream(call).end() == (grpc.StatusCode.INVALID_ARGUMENT, "what came is no message")
    assert not [record for record in caplog.records if record.exc_info]
    await (await house.attach(epoch=2)).facts()


async def test_a_plan_that_cannot_be_is_refused_without_a_traceback(house: House, caplog: Any) -> None:
    """Also with tracing on, where its rows are looked at once more."""
    stream = await house.attach()
    await stream.facts()
    plan = prefill(1, 0, 1, [1, 2], traceparent=f"00-{'a' * 32}-{'b' * 16}-01")
    plan.count.append(5)
    await stream.send(plan)
    assert "differ in length" in (await stream.get()).failed.message
    await stream.send(prefill(2, 0, 2, [1, 2]))
    assert len((await stream.result()).tokens) == 1
    assert [record.exc_info for record in caplog.records if "step 1" in record.getMessage()] == [None]


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": [5, 1 << 20, 7]}, {"tokens": [5, -1, 7]}, {"sampling": pb.Sampling(top_p=float("nan"))},
        {"sampling": pb.Sampling(min_p=1.5, temperature=1)}, {"sampling": pb.Sampling(top_p=-1.0)},
        {"sampling": pb.Sampling(temperature=float("inf"))}, {"sampling": pb.Sampling(logit_bias={5: 1e300})},
    ],
)  # fmt: skip
async def test_what_one_sequence_cannot_have_fails_that_one_alone(house: House, wrong: Any) -> None:
    stream = await house.attach()
    await stream.facts()
    plan = prefill(1, 0, 1, [1, 2], **wrong)
    plan.MergeFrom(prefill(1, 1, 2, [3, 4]))
    await stream.send(plan)
    result = await stream.result()
    finishes = dict(zip(result.slot, result.finish, strict=True))
    assert finishes == {0: pb.ERROR, 1: pb.RUNNING}
    assert result.errors[0] and len(result.tokens) == 1
