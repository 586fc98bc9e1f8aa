"""Clients that mean no good, or are slow, against a gateway in a process of its own, over bare sockets."""

import asyncio
import gzip
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from pillion.contracts.entries import Tokens
from tests.servers import free_port

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
STREAM = json.dumps({"prompt": "x", "stream": True, "max_tokens": 1000}).encode()


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        return str(json.loads(self.body)["error"]["code"])


class Client:
    """One connection. Every wait has a deadline."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self, seconds: float = 40) -> Answer:
        async with asyncio.timeout(seconds):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:-2])
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return Answer(int(head[0].split()[1]), headers, body)

    async def ended(self, seconds: float = 40) -> bytes:
        """What comes until the server closes."""
        async with asyncio.timeout(seconds):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""


class Site:
    """A gateway's process, and the back side of its stack."""

    def __init__(self, process: Any, port: int, driver: Any, log: Callable[[], str]) -> None:
        self.process, self.port, self.driver, self.log = process, port, driver, log
        self._clients: list[Client] = []

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self._clients.append(client)
        return client

    async def ask(self, data: bytes) -> Answer:
        client = await self.connect()
        client.send(data)
        try:
            return await client.answer()
        finally:
            client.writer.close()

    def close(self) -> None:
        for client in self._clients:
            client.writer.close()


Start = Callable[..., Awaitable[Site]]


@pytest.fixture
async def site(processes: Any, valkey: Any, driver_of: Any) -> AsyncIterator[Start]:
    """`await site(**settings)`: a gateway that is ready."""
    port = free_port()
    made: list[Site] = []

    async def start(**settings: Any) -> Site:
        running = processes(port=port, **settings)
        driver = driver_of(valkey.url, "default")
        begun = Site(running.start("gateway"), port, driver, lambda: running.log("gateway"))
        made.append(begun)
        deadline = time.monotonic() + 90
        while True:
            await driver.tell()
            try:
                if (await begun.ask(b"GET /health/ready HTTP/1.1\r\nHost: x\r\n\r\n")).status == 200:
                    return begun
            except OSError:
                assert begun.process.poll() is None, begun.log()
            assert time.monotonic() < deadline, begun.log()
            await asyncio.sleep(0.05)

    yield start
    for begun in made:
        begun.close()
        await begun.driver.close()


async def test_slow_senders_get_408_and_the_door(site: Start) -> None:
    at = await site(read_timeout=1.5, keepalive_timeout=60)
    begin = time.monotonic()
    head, trickle, body, idle = [await at.connect() for _ in range(4)]
    head.send(b"GET /health/live HTTP/1.1\r\nHost:")
    body.send(HEAD + b'Content-Length: 100\r\n\r\n{"prompt"')

    async def drip() -> None:
        """A byte now and then buys no time."""
        trickle.send(b"GET /health/live HTTP/1.1\r\nX: ")
        while not trickle.reader.at_eof():
            trickle.send(b"x")
            await asyncio.sleep(0.1)

    dripping = asyncio.create_task(drip())
    for answer in await asyncio.gather(*(client.answer() for client in (head, trickle, body))):
        assert (answer.status, answer.code) == (408, "request_timeout")
    dripping.cancel()
    await asyncio.gather(*(client.ended() for client in (head, trickle, body)))
    assert 1.4 < time.monotonic() - begin < 50, "the deadlines count, not the keep-alive time"
    # Who sent nothing yet is only idle, and is served.
    idle.send(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await idle.answer()).status == 200
    # The deadline of the head that came in time is over: the connection outlives it.
    await asyncio.sleep(2)
    idle.send(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await idle.answer()).status == 200


async def test_idle_connections_are_closed(site: Start) -> None:
    at = await site(keepalive_timeout=1)
    silent, used = await at.connect(), await at.connect()
    used.send(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await used.answer()).status == 200
    assert [await silent.ended(), await used.ended()] == [b"", b""]


async def test_a_slow_reader_holds_no_memory_and_is_cut_off(site: Start) -> None:
    """It asks for a stream and reads nothing, while megabytes of tokens come for it."""
    at = await site(write_timeout=2)
    process = psutil.Process(at.process.pid)
    sock = socket.socket()
    with closing(sock):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", at.port))
        sock.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(STREAM) + STREAM)
        request = await at.driver.request()
        before, most, cancel = process.memory_info().rss, 0, None
        position, portion = 0, (100,) * 500
        deadline = time.monotonic() + 60
        while cancel is None:
            for _ in range(4):
                await at.driver.publish(request.gateway, Tokens(request.id, 0, position, portion))
                position += len(portion)
            most = max(most, process.memory_info().rss)
            found = await at.driver.cancels.read(count=1, block=0.05)
            cancel = found[0] if found else None
            assert time.monotonic() < deadline, "the stream was never given up"
        assert position > 20_000 and "took nothing for 2 s" in at.log()
        assert most - before < 16 << 20
        # The connection is gone, not half closed with its buffers.
        while any(c.status == "ESTABLISHED" and c.laddr.port == at.port for c in process.net_connections()):
            assert time.monotonic() < deadline
            at.close()
            await asyncio.sleep(0.05)


async def test_a_connection_that_closes_does_not_wait_for_a_reader(site: Start) -> None:
    """The whole answer fits into the buffers, so that nothing waits but the close."""
    at = await site(write_timeout=1, keepalive_timeout=1)
    body = json.dumps({"prompt": "x " * 18_000}).encode()
    sock = socket.socket()
    with closing(sock):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", at.port))
        head = HEAD.replace(b"/v1/completions", b"/tokenize") + b"Connection: close\r\n"
        sock.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        deadline = time.monotonic() + 60
        while "took nothing for 1 s" not in at.log():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


async def test_most_connections(site: Start) -> None:
    at = await site(max_connections=5, keepalive_timeout=60)
    held: list[Client] = []
    deadline = time.monotonic() + 60
    while len(held) < 5:
        # Those of the start may not have been let go yet.
        client = await at.connect()
        client.send(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        try:
            answer = await client.answer()
        except (OSError, asyncio.IncompleteReadError):
            answer = None
        if answer is not None and answer.status == 200:
            held.append(client)
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    refused = await at.connect()
    answer = await refused.answer()
    assert (answer.status, answer.code) == (503, "too_many_connections")
    assert answer.headers["retry-after"] and answer.headers["connection"] == "close"
    assert await refused.ended() == b""
    for client in held:
        client.send(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await client.answer()).status == 200
    held.pop().writer.close()
    while True:
        client = await at.connect()
        client.send(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        try:
            if (await client.answer()).status == 200:
                return
        except (OSError, asyncio.IncompleteReadError):
            pass
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def _body(data: bytes, *headers: bytes) -> bytes:
    return HEAD + b"".join(h + b"\r\n" for h in headers) + b"Content-Length: %d\r\n\r\n" % len(data) + data


async def test_what_is_too_much(site: Start) -> None:
    """Each is refused with its own words, and the process does not grow."""
    at = await site(max_body_bytes=1 << 20)
    process = psutil.Process(at.process.pid)
    before = process.memory_info().rss
    bomb = gzip.compress(b" " * (200 << 20), 9)
    assert len(bomb) < 1 << 20
    huge_line = b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"
    one_header = b"GET /version HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 9000 + b"\r\n\r\n"
    many = b"GET /version HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X%d: y\r\n" % n for n in range(200)) + b"\r\n"
    smuggled = HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\nG"
    prompt = json.dumps({"prompt": "a " * 500_000}).encode()
    for data, status, code in (
        (_body(b"{" + b" " * (1 << 20)), 413, "request_too_large"),
        (_body(bomb, b"Content-Encoding: gzip"), 413, "request_too_large"),
        (huge_line, 400, "invalid_http"),
        (one_header, 400, "invalid_http"),
        (many, 400, "invalid_http"),
        (smuggled, 400, "invalid_http"),
        (_body(b"[" * 100_000), 400, "invalid_json"),
        (_body(b"[" * 500_000), 400, "too_many_items"),
        (_body(prompt), 400, "context_length_exceeded"),
    ):
        answer = await at.ask(data)
        assert (answer.status, answer.code) == (status, code), data[:80]
        assert len(answer.body) < 1000
    assert process.memory_info().rss - before < 48 << 20
    assert "Traceback" not in at.log()


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
async def test_what_a_web_page_may_send_anywhere_is_not_read(start: Any, kind: str) -> None:
    stack = await start()
    # A page posts these without asking; its Origin goes with them.
    headers = {"Origin": "http://evil.example"} | ({"Content-Type": kind} if kind else {})
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        status, body, sent = await stack.fetch(
            "POST", path, data=b'{"prompt": "x"}', headers=headers, skip_auto_headers=["Content-Type"]
        )
        assert (status, body["error"]["code"]) == (415, "unsupported_media_type")
        assert not [name for name in sent if name.lower().startswith("access-control")]


async def test_a_web_page_that_asks_first_is_told_nothing(start: Any) -> None:
    stack = await start()
    asks = {
        "Origin": "http://evil.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type",
    }
    for path in ("/v1/completions", "/v1/models", "/v1/streams/x", "/health"):
        status, _, sent = await stack.fetch("OPTIONS", path, headers=asks)
        assert status == 405
        assert not [name for name in sent if name.lower().startswith("access-control")]


@pytest.mark.parametrize(
    ("settings", "host", "status"),
    [
        ({}, "evil.example", 403),
        ({}, "evil.example:8000", 403),
        ({}, "127.0.0.1.evil.example", 403),
        ({}, "localhost.evil.example", 403),
        ({}, "localhost:1", 200),
        ({}, "LOCALHOST.", 200),
        ({}, "my.localhost:3000", 200),
        ({}, "[::1]:8000", 200),
        ({}, "192.168.7.7", 200),
        ({}, "gateway:8000", 200),
        ({"allowed_hosts": ("llm.example.com",)}, "LLM.example.com:443", 200),
        ({"allowed_hosts": ("llm.example.com",)}, "evil.example", 403),
        ({"allowed_hosts": ("*",)}, "evil.example", 200),
        ({"host": "0.0.0.0"}, "llm.example.com", 200),
        ({"host": "0.0.0.0", "allowed_hosts": ("gateway",)}, "evil.example", 403),
        ({"host": "0.0.0.0", "allowed_hosts": ("gateway",)}, "gateway:8000", 200),
        ({"api_key": ("k",)}, "llm.example.com", 200),
        ({"api_key": ("k",), "allowed_hosts": ("a.example",)}, "llm.example.com", 403),
    ],
)
async def test_a_name_that_was_made_to_point_here(start: Any, settings: Any, host: str, status: int) -> None:
    stack = await start(ready=False, model=None, **settings)
    for path in ("/v1/models", "/health/live", "/metrics"):
        got, body, _ = await stack.fetch("GET", path, headers={"Host": host, "Authorization": "Bearer k"})
        assert got == status, path
        if status == 403:
            assert body["error"]["code"] == "host_not_allowed"
            assert "--allowed-hosts" in body["error"]["message"]
            assert host not in body["error"]["message"]
