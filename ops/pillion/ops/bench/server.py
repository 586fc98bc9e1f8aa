"""A server under load: any that speaks OpenAI's completions."""

import json
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import aiohttp

from pillion.ops.bench.client import Timeline, pieces, stream
from pillion.ops.traces import Arrival, prompt
from pillion.ops.traces.arrival import IDS

MEET_SECONDS = 300.0  # for a few tokens of a server that may just be waking

SMALL = range(100, 250)
"""Ordinary tokens of small vocabularies."""

WORDS = ("time", "year", "people", "way", "day", "thing", "world", "school", "state", "group", "hand", "part")
"""For servers that take no token ids: about a token each."""


@dataclass(frozen=True, slots=True)
class Job:
    """One request: token ids, how many tokens to ask for, and when it is due."""

    prompt: list[int]
    output: int
    at: float = 0.0  # seconds from the start
    priority: int = 0  # lower runs earlier
    tenant: str = ""

    @classmethod
    def of(cls, arrival: Arrival, random_: random.Random) -> Self:
        """With a prompt of random token ids, so that none hits a prefix."""
        return cls(prompt(random_, arrival.prompt), arrival.output, arrival.at)


class NoServer(Exception):
    """It cannot be measured. One line that says why and what to do."""


class Server:
    """One server, once `meet` has found out how it wants to be asked."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        url: str,
        model: str | None = None,
        keys: Mapping[str, str] | None = None,
    ) -> None:
        """`keys`: of tenants; who has none there is asked for with the session's."""
        self.url = url.rstrip("/").removesuffix("/v1")
        self.model = model
        self.notes: list[str] = []  # what its figures are not, or not quite
        self.keys = keys or {}
        self._http = http
        self._ids: range | None = IDS  # None: prompts are words

    async def meet(self) -> None:
        """Asks for the model's name and for a few tokens. Raises NoServer."""
        self.model = self.model or await self._served()
        end = time.perf_counter() + MEET_SECONDS
        for self._ids in (IDS, SMALL, None):
            line = await self.complete(Job([*IDS[-32:]], 4), max(end - time.perf_counter(), 0.001))
            if not line.error:
                break
        else:
            raise NoServer(f"{self.url} answers a completion with: {line.error}")
        if line.cut:
            raise NoServer(f"{self.url} has not answered a completion of 4 tokens within {MEET_SECONDS:g} s")
        if not line.tokens:
            raise NoServer(
                f"{self.url} streams no tokens of a completion; is it an OpenAI-compatible server?"
            )
        if self._ids is None:
            self.notes.append("prompts are words, since it takes no token ids; their lengths are about right")
        elif self._ids is SMALL:
            self.notes.append("its vocabulary is small: prompts are drawn from few tokens")
        if not line.by_ids:
            self.notes.append("it streams no token ids: a piece of text counts as a token in gaps")

    async def complete(self, job: Job, within: float | None = None) -> Timeline:
        """Runs one request, greedily and to its full length, for so many seconds at most.

        What fails is kept in the timeline.
        """
        body: dict[str, Any] = {
            "prompt": job.prompt if self._ids is IDS else self._translated(job.prompt),
            "max_tokens": job.output,
            "temperature": 0,
            "ignore_eos": True,
        }
        body |= {"model": self.model} if self.model else {}
        body |= {"priority": job.priority} if job.priority else {}
        line = await stream(self._http, f"{self.url}/v1/completions", body, within, self.keys.get(job.tenant))
        line.prompt_tokens = line.prompt_tokens or len(job.prompt)
        return line

    def _translated(self, prompt: list[int]) -> list[int] | str:
        if self._ids is None:
            return " ".join(WORDS[number % len(WORDS)] for number in prompt)
        return [self._ids[number % len(self._ids)] for number in prompt]

    async def _served(self) -> str | None:
        try:
            async with self._http.get(f"{self.url}/v1/models") as response:
                if response.status in (401, 403):
                    raise NoServer(f"{self.url} wants a key: give --api-key KEY")
                told = b"".join([data async for data in pieces(response)])
                return str(json.loads(told)["data"][0]["id"]) if response.status == 200 else None
        except aiohttp.ClientConnectorCertificateError as error:
            raise NoServer(
                f"{self.url} shows a certificate that is not trusted here ({error.certificate_error}); name "
                "the PEM file of its authority in SSL_CERT_FILE"
            ) from None
        except (aiohttp.ClientConnectionError, OSError) as error:
            raise NoServer(
                f"no server answers at {self.url} ({error}); start one with `pillion up`, or name another "
                "with --url"
            ) from None
        except (aiohttp.ClientError, ValueError, LookupError, TypeError, RecursionError):
            return None  # it may serve completions all the same
