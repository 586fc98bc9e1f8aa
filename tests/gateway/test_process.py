"""The gateway as its own process: its size, its signals, its exit codes; and spans of one request."""

import asyncio
import signal
import socket
import time
from typing import Any

import aiohttp
import psutil
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pillion.contracts.entries import Tokens
from tests.servers import free_port

LIMIT = 120 << 20  # bytes resident
STREAM = {"messages": [{"role": "user", "content": "Hello"}], "stream": True}


@pytest.fixture
async def served(request: pytest.FixtureRequest, processes: Any, valkey: Any, driver_of: Any) -> Any:
    """A process that is ready, with its driver. The parameter is its grace period."""
    port = free_port()
    running = processes(port=port, drain_timeout=getattr(request, "param", 20))
    process = running.start("gateway")
    driver = driver_of(valkey.url, "default")
    async with aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 90
        while True:
            await driver.tell()
            try:
                async with session.get(url + "/health/ready") as response:
                    if response.status == 200:
                        break
            except aiohttp.ClientError:
                pass
            assert time.monotonic() < deadline, running.log("gateway")
            await asyncio.sleep(0.05)
        yield process, driver, session, url, running
        await driver.close()


async def draining(session: aiohttp.ClientSession, url: str) -> None:
    """Until it says so."""
    async with asyncio.timeout(30):
        while True:
            async with session.get(url + "/health/ready") as health:
                if (await health.json())["reason"] == "draining":
                    return
            await asyncio.sleep(0.02)


async def test_s33_sigterm_finishes_streams_and_takes_no_new_ones(served: Any, parse_sse: Any) -> None:
    process, driver, session, url, running = served
    async with session.post(url + "/v1/chat/completions", json=STREAM) as response:
        request = await driver.request()
        await driver.publish(request.gateway, Tokens(request.id, 0, 0, (100,)))
        assert psutil.Process(process.pid).memory_info().rss < LIMIT
        process.send_signal(signal.SIGTERM)
        await draining(session, url)
        async with session.post(url + "/v1/chat/completions", json=STREAM) as refused:
            assert (refused.status, (await refused.json())["error"]["code"]) == (503, "draining")
            assert refused.headers["Retry-After"]
        await driver.publish(request.gateway, Tokens(request.id, 0, 1, (101,), "length"))
        assert parse_sse(await response.text())[-1] == "[DONE]"
    assert await asyncio.to_thread(process.wait, 30) == 0, running.log("gateway")
    keys = await driver.connection.call("KEYS", f"*{request.gateway}*")
    assert keys == [], "nothing is left that names the gateway"


async def test_s33_a_second_signal_forces_and_the_rest_is_cancelled(served: Any) -> None:
    process, driver, session, url, running = served
    async with session.post(url + "/v1/chat/completions", json=STREAM):
        request = await driver.request()
        process.send_signal(signal.SIGTERM)
        await draining(session, url)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 30) == 130
    cancel = await driver.cancel()
    assert (cancel.request, cancel.choice, cancel.park) == (request.id, None, True)
    assert cancel.reason == "gateway_ends"
    assert "the gateway ends; it goes on where its client comes back" in running.log("gateway")


@pytest.mark.parametrize("served", [0.3], indirect=True)
async def test_what_outlives_the_grace_period_is_handed_on(served: Any) -> None:
    process, driver, session, url, running = served
    async with session.post(url + "/v1/chat/completions", json=STREAM):
        request = await driver.request()
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 30) == 0, running.log("gateway")
    cancel = await driver.cancel()
    assert (cancel.request, cancel.choice, cancel.park) == (request.id, None, True)
    log = running.log("gateway")
    assert "1 running request left, to go on where the client comes back" in log
    assert "what had not ended within 0.3 s is handed on" in log


async def test_s6_a_killed_gateways_lease_ends(served: Any) -> None:
    process, driver, session, url, _ = served
    async with session.post(url + "/v1/chat/completions", json=STREAM):
        request = await driver.request()
        lease = driver.keys.lease(f"gateway:{request.gateway}")
        assert await driver.connection.call("EXISTS", lease) == 1
        process.kill()
    await asyncio.to_thread(process.wait, 30)
    before = await driver.connection.call("PTTL", lease)
    await asyncio.sleep(3)  # longer than it is renewed in
    assert 0 < await driver.connection.call("PTTL", lease) < before - 2500 <= 10_000


@pytest.mark.parametrize(
    ("settings", "word"),
    [({}, "is in use"), ({"model": "/nowhere/at/all"}, "no model at"), ({"redis": ""}, "--redis")],
)
async def test_what_is_wrong_is_said_in_one_line(processes: Any, settings: Any, word: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1] if not settings else free_port()
        running = processes(port=port)
        process = running.start("gateway", **settings)
        assert await asyncio.to_thread(process.wait, 60) == 2
    log = running.log("gateway")
    assert word in log and "Traceback" not in log


async def test_spans_of_one_request(start: Any) -> None:
    stack = await start()
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    stack.gateway.state.accounts.tracer = provider.get_tracer("test")
    client = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    answer = stack.post(
        "/v1/chat/completions", STREAM | {"stream": False, "seed": 3}, headers={"traceparent": client}
    )
    request = await stack.driver.request()
    await stack.driver.play(request, [100, 101], size=2, cached=1)
    assert (await answer)[0] == 200
    spans = {span.name: span for span in exporter.get_finished_spans()}
    server, chat = spans["POST /v1/chat/completions"], spans["chat demo"]
    send = spans["send pillion:submit"]
    assert len(spans) == 3 and {span.context.trace_id for span in spans.values()} == {int("a" * 32, 16)}
    assert server.parent.span_id == int("b" * 16, 16)
    assert chat.parent.span_id == server.context.span_id and send.parent.span_id == chat.context.span_id
    assert request.traceparent.split("-")[2] == f"{chat.context.span_id:016x}"
    attributes = dict(chat.attributes)
    assert attributes["gen_ai.operation.name"] == "chat" and attributes["gen_ai.provider.name"] == "pillion"
    assert attributes["gen_ai.request.seed"] == 3 and attributes["gen_ai.request.stream"] is False
    assert attributes["gen_ai.usage.output_tokens"] == 2
    assert attributes["gen_ai.usage.cache_read.input_tokens"] == 1
    assert attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert "gen_ai.system" not in attributes and "error.type" not in attributes
    assert server.attributes["http.response.status_code"] == 200
    status, *_ = await stack.fetch("POST", "/v1/chat/completions", json={"messages": []})
    assert status == 400
    failed = exporter.get_finished_spans()[-1]
    assert (
        failed.attributes["error.type"] == "empty_array"
        and failed.attributes["http.response.status_code"] == 400
    )
