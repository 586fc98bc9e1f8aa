"""One streamed request as a client sees it: when each token came.

While a stream runs, only the time of each read is noted; what was read is taken apart when it has ended, so
that the client costs the server's cores as little as it can.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from pillion.ops.web import trusting

QUIET_SECONDS = 300.0  # between two pieces of an answer
MOST_BYTES = 1 << 26  # of an answer: what is longer is none, and takes memory without end


@dataclass(slots=True)
class Timeline:
    """Times are seconds of `time.perf_counter`. `tokens` has one entry a token, not one an event.

    Where a server streams no token ids, each piece of text counts as one token.
    """

    sent: float
    tokens: list[float] = field(default_factory=list)
    by_ids: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0  # as the server counts them; without that, what came
    finish: str | None = None
    error: str | None = None
    status: int = 0  # HTTP; 0: no answer
    code: str | None = None  # of an error
    cut: bool = False  # it ran when its time was over

    @property
    def ttft(self) -> float:
        """Seconds from sending to the first token."""
        return self.tokens[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        """Seconds between consecutive tokens (TBT). Tokens of one event have a gap of 0."""
        return [after - before for before, after in zip(self.tokens, self.tokens[1:], strict=False)]


def session(api_key: str | None = None, certificate: str | None = None) -> aiohttp.ClientSession:
    """`certificate`: the PEM file of a server on this machine; else the machine's authorities are asked."""
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=None, sock_read=QUIET_SECONDS),
        connector=aiohttp.TCPConnector(limit=0, ssl=True if certificate is None else trusting(certificate)),
        headers=bearer(api_key) if api_key else {},
    )


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def stream(
    http: aiohttp.ClientSession,
    url: str,
    body: dict[str, Any],
    within: float | None = None,
    key: str | None = None,
) -> Timeline:
    """Sends `body` to `url` and reads the stream to its end, or for so many seconds. `key`: in place of the
    session's.

    What fails is kept in the timeline, with what came before.
    """
    body = body | {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
    raw = msgspec.json.encode(body)
    headers = _JSON if key is None else _JSON | bearer(key)
    sent = time.perf_counter()
    status, error, limit = 0, None, asyncio.timeout(within)
    reads: list[tuple[float, bytes]] = []
    try:
        async with limit, http.post(url, data=raw, headers=headers) as response:
            status = response.status
            if status != 200:
                whole = b"".join([data async for data in pieces(response)])
                text = whole.decode(errors="replace")
                return Timeline(sent, error=f"{status} {text[:300]}", code=_code(whole), status=status)
            async for data in pieces(response):
                reads.append((time.perf_counter(), data))  # noqa: PERF401 - kept where the next read fails
    except (aiohttp.ClientError, OSError) as failure:
        error = None if limit.expired() else str(failure) or repr(failure)
    line = taken_apart(sent, reads)
    line.status, line.cut, line.error = status, limit.expired(), error or line.error
    return line


async def pieces(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """What comes of an answer. Raises ClientError, also for one that is longer than any should be."""
    size = 0
    async for data in response.content.iter_any():
        size += len(data)
        if size > MOST_BYTES:
            raise aiohttp.ClientPayloadError(f"an answer of more than {MOST_BYTES >> 20} MiB")
        yield data


_JSON = {"Content-Type": "application/json"}


# --- what was read ---------------------------------------------------------------------------------


class _Choice(msgspec.Struct):
    text: str | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


def taken_apart(sent: float, reads: Iterable[tuple[float, bytes]]) -> Timeline:
    """The timeline of a stream of server-sent events; `reads` tells when which bytes came.

    An event came with its last byte.
    """
    ids: list[float] = []
    texts: list[float] = []
    line, rest = Timeline(sent), b""
    for at, data in reads:
        *whole, rest = (rest + data).split(b"\n")
        for raw in whole:
            if not raw.startswith(b"data:") or raw[5:].strip() == b"[DONE]":
                continue
            try:
                event = _decode(raw[5:])
            except msgspec.DecodeError as error:
                line.error = f"an event is no completion's: {error}"
                continue
            if event.error is not None:
                line.error, line.code = str(event.error), _code(raw[5:])
            for choice in event.choices:
                ids += [at] * len(choice.token_ids or ())
                texts += [at] * bool(choice.text)
                line.finish = choice.finish_reason or line.finish
            if usage := event.usage:
                line.prompt_tokens, line.output_tokens = usage.prompt_tokens, usage.completion_tokens
                line.cached_tokens = (usage.prompt_tokens_details or _Details()).cached_tokens or 0
    line.by_ids, line.tokens = bool(ids), ids or texts
    line.output_tokens = line.output_tokens or len(line.tokens)
    return line


def _code(body: bytes) -> str | None:
    """The machine-readable reason of an error in OpenAI's shape; None where it has another."""
    try:
        code = msgspec.json.decode(body)["error"]["code"]
    except (ValueError, LookupError, TypeError):
        return None
    return code if isinstance(code, str) else None
