"""A client that reads a stream event by event, goes away and comes back; what the tests of that share."""

import json
from typing import Any

from pillion.contracts.entries import ChoiceRecord, Request

PATH = "/v1/chat/completions"
STREAM: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 64,
    "stream": True,
    "return_token_ids": True,
}
KEY = {"Idempotency-Key": "once"}


def contents(events: list[tuple[str | None, str]]) -> list[int]:
    """The tokens of a stream's events."""
    bodies = [json.loads(data) for _, data in events if data != "[DONE]"]
    return [token for body in bodies for part in body["choices"] for token in part.get("token_ids", ())]


def durations(stack: Any) -> dict[str, float]:
    """How many requests were timed, by the code of their error."""
    name = "gen_ai_server_request_duration_seconds"
    return {
        sample.labels["error_type"]: sample.value
        for metric in stack.gateway.state.metrics.registry.collect()
        if metric.name == name
        for sample in metric.samples
        if sample.name == name + "_count"
    }


class Reader:
    """A client that reads a stream event by event and may go away."""

    def __init__(self, stack: Any, parse_ids: Any) -> None:
        self.stack = stack
        self.events: list[tuple[str | None, str]] = []
        self._parse = parse_ids
        self._response: Any = None

    async def ask(self, body: Any = STREAM, **more: Any) -> "Reader":
        self._response = await self.stack.session.post(self.stack.url + PATH, json=body, **more)
        return self

    async def go_on(self, identity: str, last: str | None = None, **headers: str) -> "Reader":
        headers |= {} if last is None else {"Last-Event-ID": last}
        url = f"{self.stack.url}/v1/streams/{identity}"
        self._response = await self.stack.session.get(url, headers=headers)
        return self

    @property
    def status(self) -> int:
        return int(self._response.status)

    @property
    def identity(self) -> str:
        return str(self._response.headers["x-request-id"])

    @property
    def last(self) -> str:
        """As a browser's EventSource has it."""
        return next(id for id, _ in reversed(self.events) if id is not None)

    async def read(self, count: int) -> None:
        for _ in range(count):
            block = await self._response.content.readuntil(b"\n\n")
            self.events += self._parse(block.decode())

    async def rest(self) -> None:
        self.events += self._parse(await self._response.text())

    async def error(self) -> tuple[int, str]:
        return self.status, (await self._response.json())["error"]["code"]

    def leave(self) -> None:
        self._response.close()


async def brought(stack: Any, request: Request, *tokens: int, at: int = 0, finish: str | None = None) -> None:
    """One token after the other, from position `at` on."""
    await stack.driver.play(request, list(tokens), at=at, finish=finish)


async def begun(reader: Reader, body: Any = STREAM, **more: Any) -> tuple[Reader, Request]:
    """It has asked, and read its first token, which is 100."""
    await reader.ask(body, **more)
    request = await reader.stack.driver.request()
    await brought(reader.stack, request, 100)
    await reader.read(2)  # the role, the token
    return reader, request


async def left(reader: Reader, request: Request, *tokens: int) -> None:
    """It goes away, and its request is parked with these tokens."""
    reader.leave()
    cancel = await reader.stack.driver.cancel()
    assert (cancel.request, cancel.park, cancel.life) == (request.id, True, request.life)
    await reader.stack.driver.park(request, ChoiceRecord(tokens, ""))
