"""One streamed request as a client sees it: when each token came."""

import json
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp


@dataclass(slots=True)
class Timeline:
    """Times are seconds of `time.perf_counter`. `tokens` has one entry a token, not one an event."""

    sent: float
    tokens: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    finish: str | None = None
    error: str | None = None
    status: int = 0  # HTTP; 0: no answer
    code: str | None = None  # of an error

    @property
    def ttft(self) -> float:
        """Seconds from sending to the first token."""
        return self.tokens[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        """Seconds between consecutive tokens (TBT). Tokens of one event have a gap of 0."""
        return [after - before for before, after in zip(self.tokens, self.tokens[1:], strict=False)]


async def stream(session: aiohttp.ClientSession, url: str, path: str, body: dict[str, Any]) -> Timeline:
    """Sends `body` and reads the stream to its end. HTTP errors are kept in the timeline."""
    body = body | {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
    line = Timeline(time.perf_counter())
    async with session.post(url + path, json=body) as response:
        line.status = response.status
        if response.status != 200:
            text = await response.text()
            line.error, line.code = f"{response.status} {text[:300]}", _code(text)
            return line
        async for raw in response.content:
            if not raw.startswith(b"data: ") or raw.startswith(b"data: [DONE]"):
                continue
            now = time.perf_counter()
            event = json.loads(raw[6:])
            if "error" in event:
                line.error, line.code = str(event["error"]), _code(raw[6:])
                return line
            for choice in event["choices"]:
                line.tokens += [now] * len(choice.get("token_ids") or ())
                line.finish = choice.get("finish_reason") or line.finish
            if usage := event.get("usage"):
                line.prompt_tokens = usage["prompt_tokens"]
                line.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return line


def _code(body: str | bytes) -> str | None:
    """The machine-readable reason of an error in OpenAI's shape; None where it has another."""
    try:
        code = json.loads(body)["error"]["code"]
    except (ValueError, LookupError, TypeError):
        return None
    return code if isinstance(code, str) else None
