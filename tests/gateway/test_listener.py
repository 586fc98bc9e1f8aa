"""What never reaches the app, over a bare socket: answered in OpenAI's shape, and no traceback in the log."""

import asyncio
import json
import logging
import socket
import struct
from typing import Any
from urllib.parse import urlsplit

import pytest

from pillion.contracts.entries import Tokens

POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


async def _send(url: str, *pieces: bytes) -> tuple[int, bytes, Any]:
    """Status, head and decoded body of the first answer on a connection of its own."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        async with asyncio.timeout(30):
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0.02)  # so that the server reads them one by one
            head = await reader.readuntil(b"\r\n\r\n")
            fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
            body = await reader.readexactly(int(fields[b"content-length"]))
    finally:
        writer.close()
    assert fields[b"content-type"].startswith(b"application/json")
    assert len(fields[b"x-request-id"]) == 32
    return int(head.split()[1]), head, json.loads(body)


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (POST + b"Expect: foo\r\nContent-Length: 2\r\n\r\n{}", 417),
        (b"OPTIONS * HTTP/1.1\r\nHost: x\r\nExpect: foo\r\n\r\n", 417),
    ],
)
async def test_what_aiohttp_answers_itself(start: Any, caplog: Any, raw: bytes, status: int) -> None:
    stack = await start()
    got, _, body = await _send(stack.url, raw)
    assert (got, set(body["error"])) == (status, {"message", "type", "param", "code"})
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /version HTTP/1.1\r\nHost: x\r\nX-Secret: " + b"s" * 9000 + b"\r\n\r\n",
        POST + b"Content-Length: secret\r\n\r\n{}",
        b"SECRET! / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03secret",
        POST + b"Transfer-Encoding: chunked\r\n\r\nsecret\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\nsecret\r\n",
        POST + b"Content-Encoding: br\r\nContent-Length: 6\r\n\r\nsecret",
        POST + b"Content-Encoding: gzip\r\nContent-Length: 6\r\n\r\nsecret",
    ],
    ids=["header", "length", "method", "tls", "chunk", "second chunk", "br", "gzip"],
)
async def test_what_is_no_http(start: Any, caplog: Any, raw: bytes) -> None:
    stack = await start()
    caplog.set_level(logging.DEBUG)
    status, _, body = await _send(stack.url, raw)
    assert (status, set(body["error"])) == (400, {"message", "type", "param", "code"})
    assert "secret" not in json.dumps(body).lower()
    await asyncio.sleep(0.05)  # an error that is logged after the answer would come now
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING or record.exc_info]
    lines = [record for record in caplog.records if record.name == "pillion.gateway.listener"]
    assert len(lines) <= 1
    assert "secret" not in caplog.text.lower()


@pytest.mark.parametrize("rest", [(b"secret\r\n",), (b"2\r\n{}\r\n", b"secret\r\n")])
async def test_a_body_that_turns_out_to_be_no_http(start: Any, caplog: Any, rest: tuple[bytes, ...]) -> None:
    """The handler waits for the body already: it must be told."""
    stack = await start()
    status, _, body = await _send(stack.url, POST + b"Transfer-Encoding: chunked\r\n\r\n", *rest)
    assert (status, body["error"]["code"]) == (400, "invalid_body")
    await asyncio.sleep(0.05)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "secret" not in json.dumps(body)


async def test_a_client_that_goes_just_before_the_end_is_no_failure(
    start: Any, caplog: Any, until: Any
) -> None:
    stack = await start()
    where = urlsplit(stack.url)
    client = socket.create_connection((where.hostname, where.port))
    body = json.dumps({"prompt": "x", "max_tokens": 1, "stream": True}).encode()
    client.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    request = await stack.driver.request()
    calls = stack.gateway.state.calls
    await until(lambda: request.id in calls)
    client.setblocking(False)
    head = b""
    while b"\r\n\r\n" not in head:  # the headers go out; then it waits for tokens
        head += await asyncio.get_running_loop().sock_recv(client, 4096)
    # The connection is reset and the last item is there before the event loop sees either: the handler is in
    # the midst of its writes when it finds that nobody is left.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    inbox = calls[request.id]._inbox
    inbox.put(Tokens(request.id, 0, 0, (5,), "length"), "0")
    inbox.wake()
    await until(lambda: not calls)
    await stack.fetch("GET", "/version")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert (await stack.fetch("GET", "/metrics"))[1].count('pillion_requests_total{outcome="aborted"} 1.0')
