"""The clients: each reads one stream to its end, and goes on with it wherever the connection is lost."""

import asyncio
import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import aiohttp

from pillion.ops.chaos.compare import Answer, Choice
from pillion.ops.chaos.workload import Work

PATIENCE = 240.0  # seconds without any event, after which a stream counts as lost
_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8)  # seconds between two attempts; the last one for all further ones
_RETRIED = (429, 502, 503)
_MET = ("stream_moved", "idempotency_key_in_use")  # codes: another attempt came at the same moment


@dataclass(slots=True)
class Stream:
    """One request as its client saw it. Times are seconds of `time.monotonic`."""

    work: Work
    salt: str
    sent: float = field(default_factory=time.monotonic)
    connections: int = 0  # that brought some of it; all but the first went on where one was lost
    ended: float | None = None
    times: list[float] = field(default_factory=list)  # one for each token, of all choices
    answer: Answer = field(default_factory=Answer)
    error: str | None = None
    refused: int = 0  # attempts that were refused before one was accepted
    connected: bool = False  # a gateway answers it now
    accepted: str | None = None  # the id under which it was accepted last
    identity: str | None = None  # as its events call it, once one has come
    last_event: str | None = None

    @property
    def request(self) -> str | None:
        """Its id within the stack."""
        if self.identity is None:
            return self.accepted
        return self.identity.removeprefix("chatcmpl-").removeprefix("cmpl-")

    def running(self, at: float) -> bool:
        return self.sent <= at and (self.ended is None or self.ended > at)

    def started(self, at: float) -> bool:
        """Whether it had brought a token by then."""
        return bool(self.times) and self.times[0] <= at


class Lost(Exception):
    """The connection ended before the stream did."""


async def play(session: aiohttp.ClientSession, urls: Sequence[str], stream: Stream) -> None:
    """Sends the request to one of the gateways and reads the answer, over as many connections as it takes,
    each to the next of them. Never raises but for cancellation: what went wrong is in `stream.error`."""
    key = uuid.uuid4().hex
    attempt = 0
    gateways = cycle([*urls[stream.work.index % len(urls) :], *urls[: stream.work.index % len(urls)]])
    end = time.monotonic() + PATIENCE
    try:
        while True:
            seen = len(stream.times)
            try:
                if await _read(session, next(gateways), stream, key):
                    return
            except (aiohttp.ClientError, OSError, TimeoutError, Lost) as error:
                reason = f"{type(error).__name__}: {error}"
            else:
                reason = f"refused {stream.refused} times"
            if len(stream.times) > seen:
                attempt, end = 0, time.monotonic() + PATIENCE
            if time.monotonic() > end:
                stream.error = f"given up after {PATIENCE:g} s: {reason}"
                return
            await asyncio.sleep(_PAUSES[min(attempt, len(_PAUSES) - 1)])
            attempt += 1
    finally:
        stream.ended = time.monotonic()


async def _read(session: aiohttp.ClientSession, url: str, stream: Stream, key: str) -> bool:
    """One connection. True when the stream has ended, False when it was refused for now.

    Until the first event says what the stream is called, the request is sent again under the same key.
    """
    if stream.identity is None:
        body = stream.work.body | {
            "cache_salt": stream.salt, "return_token_ids": True,
            "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        request = session.post(url + stream.work.path, json=body, headers={"Idempotency-Key": key})
    else:
        headers = {} if stream.last_event is None else {"Last-Event-ID": stream.last_event}
        request = session.get(f"{url}/v1/streams/{stream.identity}", headers=headers)
    async with request as response:
        if response.status != 200:
            text = await response.text()
            if response.status in _RETRIED or (response.status == 409 and any(code in text for code in _MET)):
                stream.refused += 1
                return False
            stream.error = f"HTTP {response.status}: {text[:300]}"
            return True
        stream.connections += 1
        if stream.identity is None:
            stream.accepted = response.headers.get("x-request-id")
        stream.connected = True
        try:
            return await _events(response, stream)
        finally:
            stream.connected = False


async def _events(response: aiohttp.ClientResponse, stream: Stream) -> bool:
    # An event counts once the empty line behind it is there: a connection may be lost in the middle of one.
    event, data = None, b""
    async for raw in response.content:
        line = raw.rstrip(b"\r\n")
        if line.startswith(b"id:"):
            event = line[3:].strip().decode()
        elif line.startswith(b"data:"):
            data = line[5:].strip()
        elif not line and raw.endswith(b"\n") and data:
            if data == b"[DONE]":
                return True
            content = json.loads(data)
            if "error" in content:
                if content["error"].get("code") in _MET:  # by an attempt of ours that was given up
                    raise Lost("the stream moved to another connection")
                stream.error = str(content["error"].get("message"))
                return True
            take(stream, content, time.monotonic())
            stream.last_event = stream.last_event if event is None else event
            event, data = None, b""
    raise Lost("the answer ended before its end")


def take(stream: Stream, event: dict[str, Any], now: float) -> None:
    """Adds what an event brings."""
    stream.identity = event.get("id", stream.identity)
    for part in event["choices"]:
        choice = stream.answer.choices.setdefault(part["index"], Choice())
        tokens = part.get("token_ids") or ()
        choice.tokens += tokens
        stream.times += [now] * len(tokens)
        choice.text += part["text"] if "text" in part else _said(part["delta"])
        choice.finish = part["finish_reason"] or choice.finish
    stream.answer.usage = event.get("usage") or stream.answer.usage


def _said(delta: dict[str, Any]) -> str:
    """What a chat's delta brings, with the names and the arguments of calls."""
    calls = [call["function"] for call in delta.get("tool_calls") or ()]
    return (delta.get("content") or "") + "".join(call.get("name", "") + call["arguments"] for call in calls)
