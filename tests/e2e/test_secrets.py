"""No text of a user and no secret gets into a log: all services at log level debug, with marked prompts."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.servers import free_ports

# Words that stand in no log unless a prompt, an answer's wish, or a secret got into one.
MARKS = (
    "zyxprompt", "zyxsystem", "zyxstop", "zyxkey", "zyxvalue", "zyxsalt", "zyxheader", "zyxpath", "zyxsecret",
)  # fmt: skip
SECRET = "zyxsecret-" + "s" * 40
AUTHORIZED = {"Authorization": f"Bearer {SECRET}"}
CHAT = {"messages": [{"role": "system", "content": "zyxsystem"}, {"role": "user", "content": "zyxprompt"}]}


@pytest.fixture
async def stack(processes: Any, tiny_model: Any, tmp_path: Any) -> AsyncIterator[tuple[str, Any, Any]]:
    """All services, ready, each with all it can say; the scheduler shows the executor a secret, over TCP."""
    port, plans = free_ports(2)
    keys = tmp_path / "keys.toml"
    keys.write_text(f'alice = "{hashlib.sha256(SECRET.encode()).hexdigest()}"\n')
    running = processes(
        model=tiny_model("smollm2"), dtype="float32", num_kv_blocks=64, port=port, log_level="debug",
        api_keys_file=keys, executor=f"127.0.0.1:{plans}", executor_secret=SECRET, drain_timeout=2,
    )  # fmt: skip
    made = {name: running.start(name) for name in ("executor", "scheduler", "admission", "gateway")}
    url = f"http://127.0.0.1:{port}"
    async with aiohttp.ClientSession(headers=AUTHORIZED) as session:
        deadline = time.monotonic() + 120
        while True:
            try:
                async with session.get(url + "/health/ready") as answer:
                    if answer.status == 200:
                        break
            except aiohttp.ClientError:
                pass
            assert time.monotonic() < deadline, {name: running.log(name)[-2000:] for name in made}
            await asyncio.sleep(0.1)
        yield url, session, (running, made)


async def test_no_text_and_no_secret_is_logged(stack: Any) -> None:
    url, session, (running, made) = stack
    chat, completions = f"{url}/v1/chat/completions", f"{url}/v1/completions"
    ran = CHAT | {"max_tokens": 4, "stop": ["zyxstop"], "cache_salt": "zyxsalt", "user": "zyxvalue"}
    long = "zyxprompt " * 5000
    statuses: list[int] = []

    async def post(path: str, **more: Any) -> None:
        async with session.post(path, **more) as answer:
            text = await answer.text()
            statuses.append(answer.status)
            assert len(text) < 20_000 and (answer.status < 400 or text.count("zyxprompt") <= 8)

    await post(chat, json=ran)
    await post(chat, json=ran | {"stream": True, "logprobs": True})
    await post(completions, json={"prompt": ["zyxprompt"], "echo": True, "max_tokens": 2})
    await post(f"{url}/tokenize", json={"prompt": "zyxprompt", "return_token_strs": True})
    for wrong in (
        CHAT | {"zyxkey": "zyxvalue"},
        CHAT | {"temperature": "zyxvalue"},
        CHAT | {"model": "zyxvalue" * 100},
        CHAT | {"stop": [7, "zyxstop"]},
        CHAT | {"max_tokens": -1},
        CHAT | {"chat_template_kwargs": {"zyxkey": "zyxvalue"}, "messages": "zyxprompt"},
        {"messages": [{"role": "zyxvalue", "content": long}]},
        {"messages": [{"role": "user", "content": long}]},
        {"messages": [{"zyxkey" * 100: "zyxprompt"}]},
        CHAT | {"tools": [{"type": "zyxvalue"}]},
    ):
        await post(chat, json=wrong)
    raw = {"Content-Type": "application/json"}
    for body in (
        b'{"zyxprompt',
        b'{"messages": "zyx\xffprompt"}',
        b'{"a": "zyxprompt\\ud800"}',
        b"zyxprompt",
    ):
        await post(chat, data=body, headers=raw)
    await post(chat, data=b"zyxprompt", headers={"Content-Type": "text/zyxheader"})
    await post(chat, json=CHAT, headers={"Authorization": "Bearer zyxkey"})
    await post(f"{url}/zyxpath", json=CHAT)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(b"POST /zyxpath HTTP/1.1\r\nHost: x\r\nzyxheader zyxprompt\r\n\r\n")
    assert b" 400 " in await asyncio.wait_for(reader.readline(), 20)
    writer.close()
    await post(chat, json=ran, headers={"X-Request-Id": "label-1", "traceparent": "zyxheader"})
    assert statuses[:4] == [200] * 4 and statuses[-1] == 200
    assert sorted(set(statuses[4:-1])) == [400, 401, 404, 415]
    # A client that goes away, and services that fall with the work in their hands.
    streamed = ran | {"stream": True, "max_tokens": 600, "ignore_eos": True}
    async with session.post(chat, json=streamed) as gone:
        await gone.content.readany()
    async with session.post(chat, json=streamed) as answer:
        begun = await answer.content.readany()
        assert b"[DONE]" not in begun, "it was to be in mid-stream"
        for name in ("executor", "scheduler"):
            made[name].kill()
            made[name].wait(60)
            running.start(name)
        assert b"[DONE]" in await asyncio.wait_for(answer.content.read(), 120)
    logs = {name: running.log(name) for name in made}
    assert all(logs.values())
    assert "DEBUG" in logs["gateway"] and "finished" in logs["gateway"]
    lines = [(name, line) for name, log in logs.items() for line in log.lower().splitlines()]
    assert [(name, line) for name, line in lines if any(mark in line for mark in MARKS)] == []
