"""Admission as a real process on a real Valkey; the test plays gateways and schedulers."""

import asyncio
import re
import signal
import socket
import time
import urllib.request
from collections.abc import Awaitable, Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from pillion.bus import append, retrying
from pillion.contracts.entries import Cancel, Queue, Refusal, decode, encode

GROUP = "admission"


async def until(condition: Callable[[], Awaitable[Any]], within: float = 60.0) -> Any:
    deadline = time.monotonic() + within
    while not (result := await condition()):
        assert time.monotonic() < deadline, "did not come about"
        await asyncio.sleep(0.02)
    return result


async def ended(process: Any, within: float = 60.0) -> int:
    return await asyncio.to_thread(process.wait, within)


@pytest.fixture
def stack(processes: Any) -> Any:
    return processes(lease_seconds=0.6)


async def held(neighbours: Any, count: int) -> None:
    """Until admission holds so many entries."""

    async def reached() -> bool:
        return await neighbours.connection.call("EXISTS", neighbours.keys.submit) and (
            await neighbours.groups() and await neighbours.pending() == count
        )

    await until(reached)


async def test_a_request_goes_to_its_replica_whole_and_the_process_ends_in_order(
    neighbours: Any, stack: Any, make: Any
):
    admission = stack.start("admission")
    neighbours.replica(make.beat(credit=1000))
    request = make.request()
    await neighbours.submit(request)
    assert await until(neighbours.ran) == [request]
    assert await neighbours.submitted() == 0
    assert await neighbours.pending() == 0
    assert await neighbours.connection.call("EXISTS", neighbours.keys.lease("admission")) == 1
    admission.send_signal(signal.SIGTERM)
    assert await ended(admission) == 0
    assert await neighbours.connection.call("EXISTS", neighbours.keys.lease("admission")) == 0
    assert "admission ends: drained" in stack.log("admission")


async def test_a_replica_gets_no_more_than_its_credit(neighbours: Any, stack: Any, make: Any):
    stack.start("admission")
    replica = neighbours.replica(make.beat(credit=100))
    requests = [make.request(40, arrival=float(number)) for number in range(6)]
    for request in requests:
        await neighbours.submit(request)
    ran = await until_count(neighbours.ran, 2)
    await held(neighbours, 4)
    assert [request.id for request in ran] == [request.id for request in requests[:2]]
    # The heartbeat counts both now, half computed: 40 and 60 make 100, and one more fits.
    last = (await neighbours.run_entries())[-1].id
    await replica.tell(last_entry=last, uncomputed=60)
    await held(neighbours, 3)
    await replica.tell(uncomputed=61)
    await asyncio.sleep(0.3)
    assert len(await neighbours.ran()) == 3
    last = (await neighbours.run_entries())[-1].id
    await replica.tell(last_entry=last, uncomputed=0)
    await held(neighbours, 1)
    assert [r.id for r in await neighbours.ran()] == [r.id for r in requests[:5]]


async def test_refusals_reach_the_gateway_with_reason_and_remedy(neighbours: Any, processes: Any, make: Any):
    stack = processes(max_waiting=2)
    stack.start("admission")
    replica = neighbours.replica(make.beat(credit=0, uncomputed=5))  # no room at all
    await until(lambda: neighbours.connection.call("EXISTS", neighbours.keys.replicas))
    cases = {
        "too_long": make.request(1000),
        "model_not_found": make.request(model="gone"),
        "deadline": make.request(deadline=time.time() - 1),
    }
    await asyncio.sleep(0.5)  # the heartbeat is known
    for request in cases.values():
        await neighbours.submit(request)
    answers = await neighbours.said(count=3)
    refusals = {refusal.request: refusal for output in answers for refusal in output.refusals}
    told = {name: refusals[request.id] for name, request in cases.items()}
    assert (told["too_long"].status, told["too_long"].param) == (400, "prompt")
    assert "at most 1000 tokens" in told["too_long"].message
    assert (told["model_not_found"].status, told["model_not_found"].code) == (404, "model_not_found")
    assert "there is demo" in told["model_not_found"].message
    assert told["deadline"].status == 504

    waiting = [make.request() for _ in range(2)]
    for request in waiting:
        await neighbours.submit(request)
    await held(neighbours, 2)
    word = await until(lambda: told_queue(neighbours, 2))
    assert (word.waiting, word.tokens) == ({"high": 0, "normal": 2, "low": 0}, 20)
    assert 0 < await neighbours.connection.call("TTL", neighbours.keys.queue) <= 5
    one_too_many = make.request()
    await neighbours.submit(one_too_many)
    (answer,) = await neighbours.said()
    (refusal,) = answer.refusals
    assert (refusal.request, refusal.status, refusal.code) == (one_too_many.id, 429, "queue_full")
    assert refusal.retry_after is not None and 1 <= refusal.retry_after <= 60
    await replica.tell(credit=1000, uncomputed=0)
    assert len(await until_count(neighbours.ran, 2)) == 2
    assert await neighbours.submitted() == 0


async def told_queue(neighbours: Any, count: int) -> Queue | None:
    """Admission's word of what waits, once it tells of so many."""
    payload = await neighbours.connection.call("GET", neighbours.keys.queue)
    word = None if payload is None else decode(payload, Queue)
    return word if word is not None and sum(word.waiting.values()) == count else None


async def until_count(read: Callable[[], Awaitable[list[Any]]], count: int) -> list[Any]:
    async def enough() -> list[Any] | None:
        found = await read()
        return found if len(found) >= count else None

    result: list[Any] = await until(enough)
    return result


async def test_a_deadline_ends_the_wait(neighbours: Any, stack: Any, make: Any):
    stack.start("admission")
    request = make.request(deadline=time.time() + 1.5)
    await neighbours.submit(request)
    (answer,) = await neighbours.said()
    assert answer.refusals[0].code == "deadline_exceeded"
    assert time.time() >= request.deadline
    assert await neighbours.submitted() == 0


async def test_cancels_are_settled_before_they_run(neighbours: Any, stack: Any, make: Any):
    # One cancelled before admission reads it (its tombstone tells), one while it waits.
    early, late, kept = make.request(n=2), make.request(n=2), make.request()
    await neighbours.submit(early)
    await neighbours.cancel(early.id)
    stack.start("admission")
    (first,) = await neighbours.said()
    for request in (late, kept):
        await neighbours.submit(request)
    await held(neighbours, 2)
    await neighbours.cancel(late.id, choice=0)
    await neighbours.cancel(late.id, choice=1)
    (second,) = await neighbours.said()
    for answer, request in ((first, early), (second, late)):
        assert [(i.request, i.choice, i.position, i.tokens, i.finish) for i in answer.items] == [
            (request.id, choice, 0, (), "cancelled") for choice in range(2)
        ]
    neighbours.replica(make.beat(credit=1000))
    assert [request.id for request in await until(neighbours.ran)] == [kept.id]
    assert await neighbours.submitted() == 0


async def test_who_is_parked_while_it_waits_leaves_without_a_word(neighbours: Any, stack: Any, make: Any):
    stack.start("admission")
    parked, refused = make.request(), make.request(life=1)
    for request in (parked, refused):
        head = neighbours.keys.stream(request.id)
        await neighbours.connection.call("HSET", head, "life", request.life, "parked", -1)
        await neighbours.submit(request)
    await held(neighbours, 2)
    cancel = Cancel(parked.id, park=True)
    await append(neighbours.connection, neighbours.keys.cancel, encode(cancel))
    await held(neighbours, 1)
    assert await neighbours.connection.call("HGET", neighbours.keys.stream(parked.id), "parked") == b"0"
    assert await neighbours.refused() == 0, "nobody is told"
    neighbours.replica(make.beat(facts=make.facts(model="other")))  # nothing can run the other one
    (answer,) = await neighbours.said()
    assert answer.refusals[0].request == refused.id
    assert await neighbours.connection.call("HGET", neighbours.keys.stream(refused.id), "parked") == b"1"


async def test_what_cannot_be_read_is_set_aside_and_told(neighbours: Any, stack: Any, make: Any):
    admission = stack.start("admission")
    newer = make.request(v=2)
    await append(neighbours.connection, neighbours.keys.submit, b"\xc1 no entry")
    await neighbours.connection.call("XADD", neighbours.keys.submit, "*", "foreign", "field")
    await neighbours.submit(newer)
    neighbours.replica(make.beat(credit=1000))
    good = make.request()
    await neighbours.submit(good)
    (answer,) = await neighbours.said()
    assert (answer.refusals[0].request, answer.refusals[0].status) == (newer.id, 500)
    assert "schema version 2, this release reads 1" in answer.refusals[0].message
    assert [request.id for request in await until(neighbours.ran)] == [good.id]
    rows = await neighbours.connection.call("XRANGE", neighbours.keys.dead, "-", "+")
    assert [row[1][1] for row in rows][:2] == [b"\xc1 no entry", b""]
    assert len(rows) == 3
    assert await neighbours.submitted() == 0
    assert admission.poll() is None


async def test_an_entry_that_was_delivered_too_often_is_given_up(neighbours: Any, stack: Any, make: Any):
    poison, fresh = make.request(), make.request()
    head = neighbours.keys.stream(poison.id)
    await neighbours.connection.call("HSET", head, "life", 0, "parked", -1)
    entry = await neighbours.submit(poison)
    await neighbours.connection.call("XGROUP", "CREATE", neighbours.keys.submit, GROUP, "0")
    await neighbours.connection.call(
        "XREADGROUP", "GROUP", GROUP, "crashed", "COUNT", 1, "STREAMS", neighbours.keys.submit, ">"
    )
    await neighbours.connection.call(
        "XCLAIM", neighbours.keys.submit, GROUP, "crashed", 0, entry, "RETRYCOUNT", 5, "JUSTID"
    )
    await neighbours.submit(fresh)
    neighbours.replica(make.beat(credit=1000))
    stack.start("admission")
    (answer,) = await neighbours.said()
    assert (answer.refusals[0].request, answer.refusals[0].code) == (poison.id, "poison_request")
    assert [request.id for request in await until(neighbours.ran)] == [fresh.id]
    assert await neighbours.connection.call("XLEN", neighbours.keys.dead) == 1
    refused, parked = await neighbours.connection.call("HMGET", head, "refused", "parked")
    assert decode(refused, Refusal) == answer.refusals[0] and parked == b"-1"


async def test_s38_the_successor_of_a_killed_admission_loses_and_doubles_nothing(
    neighbours: Any, stack: Any, make: Any
):
    first = stack.start("admission")
    requests = [make.request(arrival=float(number)) for number in range(20)]
    for request in requests[:15]:
        await neighbours.submit(request)
    await held(neighbours, 15)
    first.kill()
    await ended(first)
    for request in requests[15:]:
        await neighbours.submit(request)
    stack.start("admission")
    await held(neighbours, 20)
    neighbours.replica(make.beat(credit=10_000, facts=make.facts(max_num_seqs=20)))
    ran = await until_count(neighbours.ran, 20)
    assert [request.id for request in ran] == [request.id for request in requests]
    assert await neighbours.submitted() == 0
    assert "took over 15 requests of a predecessor" in stack.log("admission")


async def test_sigterm_leaves_what_waits_to_the_successor(neighbours: Any, stack: Any, make: Any):
    first = stack.start("admission", drain_timeout=0)  # in order, whatever the grace period
    request = make.request()
    await neighbours.submit(request)
    await held(neighbours, 1)
    second = stack.start("admission")  # stands by
    await asyncio.sleep(1.5)  # two leases
    assert await neighbours.consumers() == 1
    first.send_signal(signal.SIGTERM)
    assert await ended(first) == 0
    neighbours.replica(make.beat())
    assert [r.id for r in await until(neighbours.ran)] == [request.id]
    assert second.poll() is None
    assert await neighbours.refused() == 0


async def test_a_frozen_admission_that_wakes_writes_nothing_and_exits(neighbours: Any, stack: Any, make: Any):
    frozen = stack.start("admission")
    requests = [make.request(arrival=float(number)) for number in range(5)]
    for request in requests:
        await neighbours.submit(request)
    await held(neighbours, 5)
    before = await neighbours.holders()
    frozen.send_signal(signal.SIGSTOP)
    stack.start("admission")

    async def taken_over() -> bool:
        now = await neighbours.holders()
        return list(now.values()) == [5] and now.keys() != before.keys()

    await until(taken_over)
    neighbours.replica(make.beat(credit=10_000))
    assert len(await until_count(neighbours.ran, 5)) == 5
    frozen.send_signal(signal.SIGCONT)
    assert await ended(frozen) == 75
    assert len(await neighbours.ran()) == 5
    again = make.request()
    await neighbours.submit(again)
    assert [r.id for r in (await until_count(neighbours.ran, 6))[5:]] == [again.id]


async def test_s39_flushall_is_healed_in_the_living_process(neighbours: Any, stack: Any, make: Any):
    admission = stack.start("admission")
    waiting = make.request()
    await neighbours.submit(waiting)
    await held(neighbours, 1)
    await neighbours.connection.call("FLUSHALL")
    await asyncio.sleep(0.5)
    neighbours.replica(make.beat(credit=1000))
    fresh = make.request()
    await neighbours.submit(fresh)
    await neighbours.submit(waiting)  # its gateway submits again what had no answer
    ran = await until_count(neighbours.ran, 2)
    assert sorted(request.id for request in ran) == sorted([waiting.id, fresh.id])
    assert admission.poll() is None
    assert "the group admission was lost and is made again; Redis lost data" in stack.log("admission")
    assert await neighbours.submitted() == 0


async def test_s41_a_long_wait_is_no_second_delivery(neighbours: Any, stack: Any, make: Any):
    stack.start("admission")
    request = make.request()
    entry = await neighbours.submit(request)
    await held(neighbours, 1)
    key = neighbours.keys.submit
    ((_, consumer, _, _),) = await neighbours.connection.call("XPENDING", key, GROUP, "-", "+", 1)
    hour = 3_600_000
    await neighbours.connection.call("XCLAIM", key, GROUP, consumer, 0, entry, "IDLE", hour, "JUSTID")
    await neighbours.submit(make.request(model="another"))  # makes it read again
    await held(neighbours, 2)
    rows = await neighbours.connection.call("XPENDING", key, GROUP, "-", "+", 10)
    assert (rows[0][1], rows[0][3]) == (consumer, 1)
    assert rows[0][2] >= hour
    neighbours.replica(make.beat())
    assert [r.id for r in await until(neighbours.ran)] == [request.id]


async def test_a_restart_of_redis_is_outlived(neighbours: Any, stack: Any, make: Any, valkey: Any):
    admission = stack.start("admission")
    waiting = make.request()
    await neighbours.submit(waiting)
    await held(neighbours, 1)
    valkey.kill()
    await asyncio.sleep(1.5)  # the lease is over by now
    await asyncio.to_thread(valkey.start)
    await retrying("test", lambda: neighbours.connection.call("PING"))
    neighbours.replica(make.beat(credit=1000))
    fresh = make.request()
    await neighbours.submit(fresh)
    ran = await until_count(neighbours.ran, 2)
    assert sorted(request.id for request in ran) == sorted([waiting.id, fresh.id])
    assert admission.poll() is None
    assert await neighbours.submitted() == 0


async def test_the_same_request_twice_runs_once(neighbours: Any, stack: Any, make: Any):
    stack.start("admission")
    request = make.request()
    await neighbours.submit(request)
    await neighbours.submit(request)
    await held(neighbours, 1)
    neighbours.replica(make.beat(credit=1000))
    assert [r.id for r in await until(neighbours.ran)] == [request.id]
    await asyncio.sleep(0.2)
    assert len(await neighbours.ran()) == 1
    assert await neighbours.submitted() == 0


async def test_metrics_count_what_happened(neighbours: Any, processes: Any, make: Any):
    stack = processes(metrics_port=0)
    stack.start("admission")
    neighbours.replica(make.beat(credit=0, uncomputed=5))
    await asyncio.sleep(0.5)
    for request in (make.request(10), make.request(20, n=2, priority=-3), make.request(5, model="gone")):
        await neighbours.submit(request)
    await neighbours.said()
    await held(neighbours, 2)
    url = re.search(r"http://\S+/metrics", stack.log("admission"))
    assert url is not None

    async def both_queued() -> dict[str, str] | None:
        text = (await asyncio.to_thread(urllib.request.urlopen, url[0])).read().decode()
        lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        queued = [lines[f'pillion_queue_requests{{priority="{name}"}}'] for name in ("normal", "high")]
        return lines if queued == ["1.0", "1.0"] else None

    lines = await until(both_queued)
    assert lines['pillion_queue_requests{priority="low"}'] == "0.0"
    assert lines['pillion_rejections_total{reason="model_not_found"}'] == "1.0"
    assert lines["pillion_prompt_tokens_arrived_total"] == "55.0"
    assert any(line.startswith('pillion_build_info{service="admission"') for line in lines)


async def test_a_taken_metrics_port_is_one_line_with_the_remedy(processes: Any):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        stack = processes(metrics_port=taken.getsockname()[1])
        assert await ended(stack.start("admission")) == 2
    assert "set --metrics-port" in stack.log("admission")
    assert "Traceback" not in stack.log("admission")


async def test_without_redis_it_says_what_to_set(processes: Any):
    stack = processes(redis="")
    assert await ended(stack.start("admission")) == 2
    assert "--redis URL" in stack.log("admission")


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    """A real OTLP receiver."""

    def __init__(self) -> None:
        self.spans: list[tuple[dict[str, str], Any]] = []

    def Export(self, request: Any, context: Any) -> Any:
        for group in request.resource_spans:
            resource = {each.key: each.value.string_value for each in group.resource.attributes}
            self.spans += [(resource, span) for scope in group.scope_spans for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()


@pytest.fixture
def receiver() -> Any:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    servicer = Receiver()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(servicer, server)
    servicer.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer
    server.stop(0).wait()


async def test_s35_spans_go_on_in_the_request_s_trace(
    neighbours: Any, processes: Any, make: Any, receiver: Any
):
    stack = processes(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{receiver.port}")
    admission = stack.start("admission")
    neighbours.replica(make.beat(credit=1000))
    requests = [make.request(traceparent=f"00-{n:032x}-{n:016x}-01") for n in (0xA1, 0xB2)]
    entries = [await neighbours.submit(request) for request in requests]
    ran = await until_count(neighbours.ran, 2)
    admission.send_signal(signal.SIGTERM)
    assert await ended(admission) == 0
    assert len(receiver.spans) == 4
    for request, forwarded, entry in zip(requests, ran, entries, strict=True):
        trace = bytes.fromhex(request.traceparent.split("-")[1])
        spans = {span.name: (resource, span) for resource, span in receiver.spans if span.trace_id == trace}
        resource, process = spans["process pillion:submit"]
        _, send = spans["send pillion:run:0"]
        assert resource["service.name"] == "pillion-admission"
        assert process.parent_span_id.hex() == request.traceparent.split("-")[2]
        assert send.parent_span_id == process.span_id
        assert forwarded.traceparent == f"00-{trace.hex()}-{send.span_id.hex()}-01"
        assert msgspec.structs.replace(forwarded, traceparent=request.traceparent) == request
        attributes = {each.key: each.value.string_value for each in process.attributes}
        assert attributes["messaging.message.id"] == entry
        assert attributes["messaging.consumer.group.name"] == "admission"
        assert attributes["messaging.destination.name"] == "pillion:submit"


async def test_it_is_small_and_idles(neighbours: Any, stack: Any, make: Any):
    admission = stack.start("admission")
    neighbours.replica(make.beat(credit=1000))
    await neighbours.submit(make.request())
    await until(neighbours.ran)
    resident = int(re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{admission.pid}/status").read_text())[1])
    assert resident < 120 * 1024
    assert "libtorch" not in Path(f"/proc/{admission.pid}/maps").read_text()

    def busy() -> int:
        user, system = Path(f"/proc/{admission.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
        return int(user) + int(system)

    before = busy()
    await asyncio.sleep(2)
    assert busy() - before < 60  # hundredths of a second: far from a core, whatever the machine's load


async def test_no_log_line_carries_a_prompt(neighbours: Any, processes: Any, make: Any):
    stack = processes(log_level="debug")
    stack.start("admission")
    neighbours.replica(make.beat(credit=1000))
    secret = (271, 141, 59, 265)
    for request in (make.request(secret * 2), make.request(secret * 500), make.request(secret, v=3)):
        await neighbours.submit(request)
    await neighbours.said(count=2)
    await until(neighbours.ran)
    log = stack.log("admission")
    assert "refused with 400" in log
    assert "271" not in re.sub(r"\d{10,}-\d+|epoch \d+", "", log)
