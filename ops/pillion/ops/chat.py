"""`pillion chat`: a conversation with a server, with the figures of each answer."""

import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import click

from pillion.config import Config
from pillion.ops import stack, web

_HELP = "/exit ends (so does Ctrl-D), /clear forgets the conversation; Ctrl-C stops an answer"


@dataclass(slots=True)
class Chat:
    """One conversation. `sampling` holds request fields; None values are left to the server."""

    url: str
    api_key: str | None
    model: str | None
    sampling: dict[str, Any]
    system: str | None = None
    certificate: str | None = None  # of a stack on this machine
    messages: list[dict[str, str]] = field(default_factory=list)

    @classmethod
    def of(
        cls, config: Config, url: str | None, model: str | None, system: str | None, sampling: dict[str, Any]
    ) -> "Chat":
        """With the server at `url`, else with the stack of this name. Raises StackError where none runs."""
        server = stack.address(config, url)
        return cls(server.url, server.key, model, sampling, system, server.certificate)

    def run(self, message: str | None) -> int:
        """One answer to `message`, or a conversation on the terminal. Returns the exit code."""
        if message is not None:
            return self._turn(message)
        try:
            self.model = self.model or self._served()
        except (web.Unreachable, web.Refused) as error:
            return self._failed(error)
        if sys.stdin.isatty():
            import readline  # noqa: F401 - line editing and history for input()

            click.echo(f"{self.model} at {self.url}. {_HELP}", err=True)
        code = 0
        for line in _lines():
            if line == "/exit":
                break
            if line == "/clear":
                self.messages.clear()
            elif line.startswith("/"):
                click.echo(_HELP, err=True)
            elif line:
                code = self._turn(line)
        return code

    def _served(self) -> str:
        status, body = web.get(f"{self.url}/v1/models", self.api_key, certificate=self.certificate)
        if status != 200:
            raise web.refusal(status, body)
        return str(body["data"][0]["id"]) if body["data"] else "no model yet"

    def _turn(self, message: str) -> int:
        """Shows the answer as it comes, then its figures. A failed one leaves the conversation as it was."""
        asked = {"role": "user", "content": message}
        system = [{"role": "system", "content": self.system}] if self.system else []
        body = {
            "messages": [*system, *self.messages, asked],
            "stream": True,
            "stream_options": {"include_usage": True},
            **{
                name: value
                for name, value in (self.sampling | {"model": self.model}).items()
                if value is not None
            },
        }
        said: list[str] = []
        usage: dict[str, Any] = {}
        begin = time.monotonic()
        first = last = 0.0
        thinking = False  # is shown beside the answer, and is no part of it
        url = f"{self.url}/v1/chat/completions"
        try:
            with closing(web.stream(url, body, self.api_key, self.certificate)) as events:
                for event in events:
                    usage = event.get("usage") or usage
                    for choice in event["choices"]:
                        delta = choice["delta"]
                        thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
                        piece = delta.get("content") or ""
                        if thought or piece:
                            last = time.monotonic()
                            first = first or last
                        if thought:
                            thinking = True
                            click.echo(click.style(thought, dim=True), nl=False, err=True)
                        if piece:
                            if thinking:
                                thinking = False
                                click.echo(err=True)
                            said.append(piece)
                            click.echo(piece, nl=False)
        except KeyboardInterrupt:
            click.echo(" [stopped]", nl=False)
        except (web.Unreachable, web.Refused) as error:
            return self._failed(error, said)
        click.echo()
        self.messages += [asked, {"role": "assistant", "content": "".join(said)}]
        click.echo(click.style(figures(usage, begin, first, last), dim=True), err=True)
        return 0

    def _failed(self, error: Exception, said: list[str] | None = None) -> int:
        if said:
            click.echo()
        remedy = ""
        if isinstance(error, web.Unreachable) and not isinstance(error, web.Untrusted):
            remedy = "; start one with `pillion up`, or name another with --url"
            error = web.Unreachable(f"no server at {self.url}: {error}")
        click.echo(f"pillion: {error}{remedy}", err=True)
        return 1


def figures(usage: dict[str, Any], begin: float, first: float, last: float) -> str:
    """`12 prompt + 30 tokens, first after 0.21 s, then 31.5 tokens/s`; times in seconds on one clock."""
    if not first:
        return "no text came"
    tokens = usage.get("completion_tokens")
    told = f"first after {first - begin:.2f} s"
    if tokens is None:
        return told
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    prompt = f"{usage.get('prompt_tokens', 0)} prompt" + (f" ({cached} cached)" if cached else "")
    rate = f", then {(tokens - 1) / (last - first):.1f} tokens/s" if tokens > 1 and last > first else ""
    return f"{prompt} + {tokens} tokens, {told}{rate}"


def _lines() -> Iterator[str]:
    """What the user types, until Ctrl-D. Ctrl-C clears the line."""
    prompt = "> " if sys.stdin.isatty() else ""
    while True:
        try:
            yield input(prompt).strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            click.echo(err=True)
