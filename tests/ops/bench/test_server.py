"""How a server wants to be asked is found out: a peer that takes no token ids, or streams none."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web

from pillion.ops.bench import client
from pillion.ops.bench import server as server_module
from pillion.ops.bench.client import session
from pillion.ops.bench.server import Job, NoServer, Server


@asynccontextmanager
async def peer(models: Any, *, takes_ids: bool, usage: bool) -> AsyncIterator[tuple[Server, list[Any]]]:
    """A server that streams two words, and the prompts that it was sent."""
    prompts: list[Any] = []

    async def complete(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        prompts.append(body["prompt"])
        if not takes_ids and not isinstance(body["prompt"], str):
            return web.json_response({"message": "prompt: not a string"}, status=422)
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        events: list[Any] = [{"choices": [{"text": text, "index": 0}]} for text in ("one", " two three")]
        if usage:
            events.append({"choices": [], "usage": {"prompt_tokens": 6, "completion_tokens": 3}})
        for event in events:
            await answer.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await answer.write(b"data: [DONE]\n\n")
        return answer

    async def name(_: web.Request) -> web.Response:
        return web.json_response(models)

    app = web.Application()
    app.router.add_post("/v1/completions", complete)
    if models is not None:
        app.router.add_get("/v1/models", name)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with session() as http:
            yield Server(http, f"http://127.0.0.1:{runner.addresses[0][1]}/v1/"), prompts
    finally:
        await runner.cleanup()


async def test_one_that_takes_no_ids_gets_words() -> None:
    async with peer({"data": [{"id": "theirs"}]}, takes_ids=False, usage=True) as (server, prompts):
        await server.meet()
        line = await server.complete(Job([1000, 1001, 1000], 9))
    assert server.model == "theirs"
    first, second, third = prompts[-1].split()
    assert first == third != second
    assert [note.partition(" ")[0] for note in server.notes] == ["prompts", "it"]
    assert (len(line.tokens), line.output_tokens, line.prompt_tokens) == (2, 3, 6)


async def test_one_that_counts_nothing_is_counted_by_pieces() -> None:
    async with peer(None, takes_ids=True, usage=False) as (server, prompts):
        await server.meet()
        line = await server.complete(Job([1000, 1001], 9))
    assert server.model is None and prompts[-1] == [1000, 1001]
    assert (line.output_tokens, line.prompt_tokens) == (2, 2)
    assert [note for note in server.notes if "no token ids" in note] == server.notes


async def test_a_certificate_is_the_one_of_this_machine_or_not_trusted(tmp_path: Path) -> None:
    authority = trustme.CA()
    made = authority.issue_cert("elsewhere.example.com")
    file = tmp_path / "chain.pem"
    file.write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    made.configure_cert(serving)

    async def name(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "secret"}]})

    app = web.Application()
    app.router.add_get("/v1/models", name)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=serving).start()
        url = f"https://127.0.0.1:{runner.addresses[0][1]}"
        async with session() as http:
            with pytest.raises(NoServer, match=r"certificate that is not trusted here .*SSL_CERT_FILE"):
                await Server(http, url).meet()
        async with session(certificate=str(file)) as http:
            with pytest.raises(NoServer, match="answers a completion with: 404"):
                await Server(http, url).meet()
    finally:
        await runner.cleanup()


async def test_one_that_refuses_says_why() -> None:
    async with peer({"data": []}, takes_ids=True, usage=True) as (server, _):
        server.url += "/elsewhere"
        with pytest.raises(NoServer, match="answers a completion with: 404"):
            await server.meet()


@asynccontextmanager
async def endless(data: bytes, *, status: int = 200, asked: bool = True) -> AsyncIterator[Server]:
    """A server whose answers have no end: one after the other of `data`, or silence where that is empty."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        while data:
            await response.write(data)
        await asyncio.sleep(600)
        return response

    app = web.Application()
    app.router.add_route("*", "/v1/completions", answer)
    if asked:
        app.router.add_get("/v1/models", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with session() as http:
            yield Server(http, f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("status", [200, 500])
async def test_an_answer_without_an_end_is_cut_off(monkeypatch: Any, status: int) -> None:
    monkeypatch.setattr(client, "MOST_BYTES", 1 << 20)
    async with endless(b"data: {}\n" * 10_000, status=status) as server:
        with pytest.raises(NoServer, match="answers a completion with: an answer of more than 1 MiB"):
            await server.meet()


async def test_one_that_never_answers_is_not_waited_for_without_end(monkeypatch: Any) -> None:
    monkeypatch.setattr(server_module, "MEET_SECONDS", 0.3)
    async with endless(b"", asked=False) as server:
        with pytest.raises(NoServer, match=r"has not answered a completion of 4 tokens within 0.3 s"):
            await server.meet()
